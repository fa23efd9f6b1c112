"""Planners from papers whose results no training carries out yet.

Only benchmarks and ``python -m training.research.partition`` use them.  They work on a measured layer graph
(``layer_graph``): ``partition`` splits it into pipeline stages, ``placement`` assigns its layers to devices.
The planner of trainings is ``training.plan``.
"""
