"""What a campaign does to other servers that joined the first one through Ray, and to the way to them."""

import signal
import time

from tests.chaos.faults import Fault, Field
from tests.system.nodes import NodeServer
from tests.system.server import kill

STANDS_STILL_S = 25.0


def kill_port(field: Field) -> str:
    node = _node(field)
    kill(port := node.port())
    return f"SIGKILL port of {node.name}" if port else f"{node.name} has no port to kill"


def kill_ray(field: Field) -> str:
    node = _node(field)
    kill(node.ray())
    return f"SIGKILL Ray of {node.name}"


def stop_ray(field: Field) -> str:
    node = _node(field)
    stopped = node.ray()
    kill(stopped, signal.SIGSTOP)
    field.hold(1, 6)
    kill(stopped, signal.SIGCONT)
    return f"SIGSTOP and SIGCONT Ray of {node.name}"


def hang_node(field: Field) -> str:
    """Nothing on it answers for longer than anybody waits: it gets no job, and its own are shown as unknown."""
    node = _node(field)
    stopped = node.ray()
    kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    try:
        while time.monotonic() - began < STANDS_STILL_S and node.health() != {"silent"}:
            time.sleep(0.2)
        if node.health() == {"silent"}:
            field.fenced_s.append(time.monotonic() - began)
        else:
            field.witness.findings.nodes.append(
                f"{node.name} stood still for {STANDS_STILL_S:.0f} s and is not silent"
            )
        field.hold(0, 5)
    finally:
        kill(stopped, signal.SIGCONT)
    return f"{node.name} stands still"


def kill_links(field: Field) -> str:
    kill(field.server.service("links"))
    return "SIGKILL links"


def kill_head(field: Field) -> str:
    kill(field.server.service("ray"))
    return "SIGKILL Ray's head"


def cut_power_of_node(field: Field) -> str:
    """Trainings there die, too; a person starts it again."""
    node = _node(field)
    node.clean_up()
    field.hold(0, 10)
    node.join()
    return f"SIGKILL everything of {node.name}, and a new start"


def _node(field: Field) -> NodeServer:
    return field.random.choice(field.nodes)


# How often each is chosen, beside the others.
NODE_FAULTS: tuple[tuple[int, Fault], ...] = (
    (8, kill_port),
    (8, kill_ray),
    (6, stop_ray),
    (3, hang_node),
    (4, kill_links),
    (4, kill_head),
    (4, cut_power_of_node),
)
