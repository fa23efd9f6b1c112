"""Planners from papers that no training carries out yet: only benchmarks and ``python -m training.research.partition`` use them.

They work on a measured layer graph (``layer_graph``): ``partition`` splits it into pipeline stages, ``placement`` puts its
layers on devices.  What Berth trains by is planned in ``training.plan``.
"""
