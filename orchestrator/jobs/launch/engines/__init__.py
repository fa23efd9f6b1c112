"""Engines: what starts an attempt's supervisor on a node and carries orders to it.

Queue, placement, launch record and checkpoints are Berth's own on every engine. ``local`` is the only engine; another
one is added beside it and chosen in ``engine_of``. Logs and checkpoints of an attempt are still read as local files.
"""

from orchestrator.jobs.launch.engines.local import LocalEngine
from orchestrator.jobs.launch.engines.port import Engine, NoShell, NotStarted, Order, order_of, read_whole
from orchestrator.models import Attempt

__all__ = ["Engine", "NoShell", "NotStarted", "Order", "engine_of", "order_of", "read_whole"]

_LOCAL = LocalEngine()


def engine_of(attempt: Attempt) -> Engine:
    """The engine that has the devices of an attempt."""
    return _LOCAL
