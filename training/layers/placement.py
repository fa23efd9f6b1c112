"""Places the layers of a branching model on devices, within their memory.

List scheduling with memory after Baechi (Jeon et al., SoCC 2020): m-TOPO, m-ETF and m-SCT; the best result is
improved by moving layers.  Devices differ only in memory.  A transfer takes ``latency_s + bytes / bandwidth``
in parallel with computation, and an output is sent to a device once.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.layers.layer_graph import Layer, LayerGraph
from training.layers.list_scheduling import etf, sct, topo
from training.layers.placement_problem import (
    Links,
    Problem,
    Schedule,
    fits,
    layer_bytes,
    makespan_of,
    pose,
    start_times,
    used_bytes,
)

__all__ = ["METHODS", "Links", "NoPlacement", "Placement", "layer_bytes", "place", "place_by"]

# The number of tried changes falls with the square of the graph's size: small graphs end up nearly optimal,
# and in large ones single changes hardly help.
_MOST_TRIES = 4000
_SEARCH_WORK = 8_000_000
_PACKING_STEPS = 20_000


class NoPlacement(ValueError):
    """The layers do not fit; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and the start time of each layer."""

    device_of: list[int]
    start_s: list[float]
    makespan_s: float
    used_bytes: list[float]  # of each device
    method: str


def place(
    graph: LayerGraph,
    memory_bytes: Sequence[float],
    links: Links,
    *,
    bytes_of: Callable[[Layer], float] = layer_bytes,
    seed: int = 0,
) -> Placement:
    """Return the fastest placement found on devices with ``memory_bytes`` each.

    Raises:
        NoPlacement: no placement within memory was found.
    """
    problem = pose(graph, memory_bytes, links, bytes_of)
    schedules: list[tuple[float, str, Schedule]] = []
    for name, method in METHODS.items():
        if schedule := method(problem):
            schedules.append((makespan_of(problem, *schedule), name, schedule))
    if not schedules and (packed := _pack(problem)):
        schedule = packed, list(range(len(graph.layers)))
        schedules.append((makespan_of(problem, *schedule), "packing", schedule))
    if not schedules:
        raise NoPlacement(_explain_failure(problem))
    improvements = []
    for number, (_, name, schedule) in enumerate(sorted(schedules)):
        improved = _improve(problem, schedule, seed + number)
        improvements.append((makespan_of(problem, *improved), name, improved))
    _, name, best = min(improvements)
    return _describe(problem, *best, name)


def place_by(
    method: str,
    graph: LayerGraph,
    memory_bytes: Sequence[float],
    links: Links,
    *,
    bytes_of: Callable[[Layer], float] = layer_bytes,
) -> Placement | None:
    """Return the result of one of ``METHODS``; None if the layers do not fit into memory this way."""
    problem = pose(graph, memory_bytes, links, bytes_of)
    schedule = METHODS[method](problem)
    return schedule and _describe(problem, *schedule, method)


METHODS: dict[str, Callable[[Problem], Schedule | None]] = {"m-TOPO": topo, "m-ETF": etf, "m-SCT": sct}


def _pack(problem: Problem) -> list[int] | None:
    """Assign a device to each layer by size alone; tries all ways up to a limit."""
    order = sorted(range(len(problem.bytes)), key=problem.bytes.__getitem__, reverse=True)
    room, device_of, steps = list(problem.capacity), [-1] * len(order), 0

    def put(place: int) -> bool:
        nonlocal steps
        steps += 1
        if place == len(order) or steps > _PACKING_STEPS:
            return place == len(order)
        number, tried = order[place], set[float]()
        for device in sorted(range(len(room)), key=room.__getitem__):
            if problem.bytes[number] > room[device] or room[device] in tried:
                continue
            tried.add(room[device])
            before, device_of[number] = room[device], device
            room[device] = before - problem.bytes[number]
            if put(place + 1):
                return True
            room[device] = before
        return False

    return device_of if len(order) < 500 and put(0) else _pack_first_fit(problem, order)


def _pack_first_fit(problem: Problem, order: Sequence[int]) -> list[int] | None:
    room, device_of = list(problem.capacity), [-1] * len(order)
    for number in order:
        fitting = [device for device, left in enumerate(room) if problem.bytes[number] <= left]
        if not fitting:
            return None
        device_of[number] = fitting[0]
        room[fitting[0]] -= problem.bytes[number]
    return device_of


def _improve(problem: Problem, schedule: Schedule, seed: int) -> Schedule:
    """Move and swap layers and their order, by simulated annealing."""
    dice = random.Random(seed)  # noqa: S311 -- the same answer every time, not a secret
    size = len(problem.bytes) + sum(map(len, problem.inputs))
    tries = min(_MOST_TRIES, _SEARCH_WORK // max(size * size, 1))
    current = (list(schedule[0]), list(schedule[1]))
    current_s = best_s = makespan_of(problem, *current)
    best = (list(current[0]), list(current[1]))
    if len(problem.capacity) < 2 or len(problem.bytes) < 2:
        return best
    for number in range(tries):
        changed = _change(problem, current, dice)
        if changed is None:
            continue
        changed_s = makespan_of(problem, *changed)
        heat = 0.08 * (1 - number / tries)
        if changed_s <= current_s * (1 + heat * dice.random() ** 2):
            current, current_s = changed, changed_s
        if changed_s < best_s:
            best, best_s = (list(changed[0]), list(changed[1])), changed_s
    return best


def _change(problem: Problem, schedule: Schedule, dice: random.Random) -> Schedule | None:
    """Return a random neighbour, or None if it exceeds memory."""
    device_of, order = list(schedule[0]), list(schedule[1])
    number = dice.randrange(len(order))
    what = dice.random()
    if what < 0.4:
        device_of[number] = dice.randrange(len(problem.capacity))
    elif what < 0.7:  # if memory is tight, layers can only swap places
        circle = [number, *(dice.randrange(len(order)) for _ in range(dice.randint(1, 3)))]
        before = [device_of[each] for each in circle]
        for place, each in enumerate(circle):
            device_of[each] = before[place - 1]
    if what > 0.5:
        _move_turn(problem, order, number, dice)
    return (device_of, order) if fits(problem, device_of) else None


def _move_turn(problem: Problem, order: list[int], number: int, dice: random.Random) -> None:
    """Move a layer in the order, between its inputs and its readers."""
    turn = {each: place for place, each in enumerate(order)}
    first = max((turn[each] + 1 for each in problem.inputs[number]), default=0)
    last = min((turn[each] for each in problem.outputs[number]), default=len(order)) - 1
    place = dice.randint(first, last)
    order.remove(number)
    order.insert(place, number)


def _describe(problem: Problem, device_of: list[int], order: list[int], method: str) -> Placement:
    return Placement(
        device_of=device_of,
        start_s=start_times(problem, device_of, order),
        makespan_s=makespan_of(problem, device_of, order),
        used_bytes=used_bytes(problem, device_of),
        method=method,
    )


def _explain_failure(problem: Problem) -> str:
    largest, room = max(problem.bytes), max(problem.capacity)
    total, all_room = sum(problem.bytes), sum(problem.capacity)
    if largest > room:
        return (
            f"one layer needs {largest:,.0f} bytes, and the largest device has {room:,.0f}; split the layer."
        )
    if total > all_room:
        return (
            f"the layers need {total:,.0f} bytes, and all {len(problem.capacity)} devices together have "
            f"{all_room:,.0f}; use more devices or a smaller micro-batch."
        )
    return (
        f"the layers need {total:,.0f} of {all_room:,.0f} bytes, but no way was found to divide them; "
        "use one device more or a smaller micro-batch."
    )
