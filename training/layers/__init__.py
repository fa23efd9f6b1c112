"""A model as a graph of layers: traced, cut into stages, placed on devices.

``tracing`` makes the graph from the user's model, ``assignment`` gives each layer a device by ``placement`` (Baechi)
or ``partition`` (PipeDream), and ``training.strategies.placed`` carries the result out.  ``layer_graph`` reads
measured graphs from files as well, for comparison with published results.
"""
