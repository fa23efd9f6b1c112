"""Engines: what starts an attempt's supervisor on a node and carries orders to it.

Queue, placement, launch record and checkpoints are Berth's own on every engine. ``LocalEngine`` is this server's;
``RemoteEngine`` has every other server and each run over several. Their links keep copies here, so logs and checkpoints
of any attempt are read as local files.
"""

from orchestrator.jobs.launch.engines.port import Engine, order_of, read_whole
from orchestrator.jobs.launch.engines.servers import LocalEngine, RemoteEngine
from orchestrator.models import LOCAL_NODE, Attempt
from orchestrator.nodes.runs import NoShell, NotStarted, Order

__all__ = ["Engine", "NoShell", "NotStarted", "Order", "engine_of", "order_of", "read_whole"]

_LOCAL, _REMOTE = LocalEngine(), RemoteEngine()


def engine_of(attempt: Attempt) -> Engine:
    """The engine that has the devices of an attempt."""
    return _LOCAL if attempt.node == LOCAL_NODE and not attempt.nodes else _REMOTE
