"""Places the layers of a branching model on devices, never over their memory.

List scheduling with memory after Baechi (Jeon et al., SoCC 2020): m-TOPO, m-ETF and m-SCT; the best of
them is improved by moving layers.  Devices are alike but for their memory.  A transfer takes
``latency_s + bytes / bandwidth`` beside the computing, and an output is sent to a device once.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from training.plan.layers import Layer, LayerGraph

# Changes tried fall with the square of the graph's size: small graphs come out optimal or nearly, and in
# large ones single changes hardly help.
_MOST_TRIES = 4000
_SEARCH_WORK = 8_000_000
_PACKING_STEPS = 20_000
_FAVOURITE_BELOW = 0.1  # as in Baechi: what the relaxed programme leaves nearly at zero counts as zero
_STATES_PER_PARAMETER = 4  # the parameter, its gradient, two moments


class NoPlacement(ValueError):
    """The layers do not fit; the sentence names what is missing."""


@dataclass(frozen=True, slots=True)
class Links:
    """What it takes to bring an output to another device."""

    bandwidth: float  # bytes a second
    latency_s: float = 0.0

    def transfer_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Placement:
    """A device for each layer of the graph, and when the layer starts."""

    device_of: list[int]
    start_s: list[float]
    makespan_s: float
    used_bytes: list[float]  # of each device
    method: str


@dataclass(frozen=True, slots=True)
class _Problem:
    compute_s: list[float]
    transfer_s: list[float]
    bytes: list[float]
    inputs: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    capacity: list[float]
    tail_s: list[float]  # the longest way from the layer's start to the end, transfers left out


_Schedule = tuple[list[int], list[int]]  # the device of each layer; the layers in the order they start


def layer_bytes(layer: Layer) -> float:
    """What a layer keeps through a training step."""
    return _STATES_PER_PARAMETER * layer.parameter_bytes + layer.activation_bytes


def place(
    graph: LayerGraph,
    memory_bytes: Sequence[float],
    links: Links,
    *,
    bytes_of: Callable[[Layer], float] = layer_bytes,
    seed: int = 0,
) -> Placement:
    """The quickest placement found on devices with ``memory_bytes`` each.

    Raises:
        NoPlacement: no placement was found that keeps within memory.
    """
    problem = _pose(graph, memory_bytes, links, bytes_of)
    found: list[tuple[float, str, _Schedule]] = []
    for name, method in METHODS.items():
        if schedule := method(problem):
            found.append((_makespan(problem, *schedule), name, schedule))
    if not found and (packed := _pack(problem)):
        schedule = packed, list(range(len(graph.layers)))
        found.append((_makespan(problem, *schedule), "packing", schedule))
    if not found:
        raise NoPlacement(_say_missing(problem))
    better = []
    for number, (_, name, schedule) in enumerate(sorted(found)):
        improved = _improve(problem, schedule, seed + number)
        better.append((_makespan(problem, *improved), name, improved))
    _, name, best = min(better)
    return _describe(problem, *best, name)


def place_by(
    method: str,
    graph: LayerGraph,
    memory_bytes: Sequence[float],
    links: Links,
    *,
    bytes_of: Callable[[Layer], float] = layer_bytes,
) -> Placement | None:
    """What one of ``METHODS`` finds alone; None where it runs into a device's memory."""
    problem = _pose(graph, memory_bytes, links, bytes_of)
    schedule = METHODS[method](problem)
    return schedule and _describe(problem, *schedule, method)


def _pose(
    graph: LayerGraph, memory_bytes: Sequence[float], links: Links, bytes_of: Callable[[Layer], float]
) -> _Problem:
    outputs = graph.outputs()
    compute_s = [layer.compute_s for layer in graph.layers]
    tail_s = [0.0] * len(compute_s)
    for number in reversed(range(len(compute_s))):
        tail_s[number] = compute_s[number] + max((tail_s[each] for each in outputs[number]), default=0.0)
    return _Problem(
        compute_s=compute_s,
        transfer_s=[links.transfer_s(layer.activation_bytes) for layer in graph.layers],
        bytes=[bytes_of(layer) for layer in graph.layers],
        inputs=graph.inputs,
        outputs=outputs,
        capacity=list(memory_bytes),
        tail_s=tail_s,
    )


def topo(problem: _Problem) -> _Schedule | None:
    """m-TOPO: fill one device after the other, in topological order, each to an even share."""
    devices = len(problem.capacity)
    share = sum(problem.bytes) / devices + max(problem.bytes)
    device_of, device, used = list[int](), 0, 0.0
    for size in problem.bytes:
        while used + size > min(share, problem.capacity[device]):
            device, used = device + 1, 0.0
            if device == devices:
                return None
        device_of.append(device)
        used += size
    return device_of, list(range(len(device_of)))


def etf(problem: _Problem) -> _Schedule | None:
    """m-ETF: always the layer that can start first, where it can start first."""
    return _ListScheduler(problem, [-1] * len(problem.bytes)).run()


def sct(problem: _Problem) -> _Schedule | None:
    """m-SCT: as m-ETF, but a device waits for the favourite child of what it ran (Hanen and Munier, 1995)."""
    return _ListScheduler(problem, _favourite_children(problem)).run()


METHODS: dict[str, Callable[[_Problem], _Schedule | None]] = {"m-TOPO": topo, "m-ETF": etf, "m-SCT": sct}


class _ListScheduler:
    """Earliest task first, with devices that may be kept for one layer for a while."""

    def __init__(self, problem: _Problem, favourite: Sequence[int]) -> None:
        self.problem, self.favourite = problem, favourite
        count, devices = len(problem.bytes), len(problem.capacity)
        self.device_of = [-1] * count
        self.end_s = [0.0] * count
        self.free_s = [0.0] * devices
        self.room = list(problem.capacity)
        self.kept_for = [(-1, 0.0)] * devices  # a layer, and until when
        # For each device the layers whose inputs are all placed: still arriving, and arrived.
        self.arriving: list[list[tuple[float, int]]] = [[] for _ in range(devices)]
        self.arrived: list[list[tuple[float, int]]] = [[] for _ in range(devices)]
        self.arrival_s: dict[int, list[float]] = {}

    def run(self) -> _Schedule | None:
        waiting = [len(inputs) for inputs in self.problem.inputs]
        order = list[int]()
        for number, inputs in enumerate(self.problem.inputs):
            if not inputs:
                self._offer(number)
        while len(order) < len(waiting):
            start_s, _, device, number = min(map(self._candidate, range(len(self.room))))
            if start_s == inf:
                return None  # what is left fits nowhere
            self._put(number, device, start_s)
            order.append(number)
            for each in self.problem.outputs[number]:
                waiting[each] -= 1
                if not waiting[each]:
                    self._offer(each)
        return self.device_of, order

    def _offer(self, number: int) -> None:
        arrivals = []
        for device in range(len(self.room)):
            arrival_s = 0.0
            for each in self.problem.inputs[number]:
                away = self.device_of[each] != device
                arrival_s = max(arrival_s, self.end_s[each] + (self.problem.transfer_s[each] if away else 0))
            arrivals.append(arrival_s)
            heappush(self.arriving[device], (arrival_s, number))
        self.arrival_s[number] = arrivals

    def _candidate(self, device: int) -> tuple[float, float, int, int]:
        """(start, minus the way to the end, device, layer) of what the device would run next."""
        free_s, arriving, arrived = self.free_s[device], self.arriving[device], self.arrived[device]
        kept_for, until_s = self.kept_for[device]
        if kept_for >= 0 and self._may_run(kept_for, device) and kept_for in self.arrival_s:
            start_s = max(free_s, self.arrival_s[kept_for][device])
            return start_s, -inf, device, kept_for
        earliest_s = max(free_s, until_s) if kept_for >= 0 and self.device_of[kept_for] < 0 else free_s
        while arriving and (arriving[0][0] <= earliest_s or not self._may_run(arriving[0][1], device)):
            number = heappop(arriving)[1]
            heappush(arrived, (-self.problem.tail_s[number], number))
        while arrived and not self._may_run(arrived[0][1], device):
            heappop(arrived)
        if arrived:
            return earliest_s, arrived[0][0], device, arrived[0][1]
        if arriving:
            arrival_s, number = arriving[0]
            return arrival_s, -self.problem.tail_s[number], device, number
        return inf, 0.0, device, -1

    def _may_run(self, number: int, device: int) -> bool:
        return self.device_of[number] < 0 and self.problem.bytes[number] <= self.room[device]

    def _put(self, number: int, device: int, start_s: float) -> None:
        self.device_of[number] = device
        self.room[device] -= self.problem.bytes[number]
        self.end_s[number] = self.free_s[device] = start_s + self.problem.compute_s[number]
        self.kept_for[device] = (self.favourite[number], self.end_s[number] + self.problem.transfer_s[number])


def _favourite_children(problem: _Problem) -> list[int]:
    """For each layer the one that should follow it on its device, or -1.

    The linear programme minimises the makespan on devices without limit; x of an edge is 0 where its
    ends share a device, and each layer has at most one such edge on either side.
    """
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    edges = [(source, number) for number, inputs in enumerate(problem.inputs) for source in inputs]
    favourite = [-1] * len(problem.bytes)
    if not edges:
        return favourite
    layers, count = len(problem.bytes), len(edges)
    makespan = layers + count  # columns: starts, edges, makespan
    rows, columns, values, limits = list[int](), list[int](), list[float](), list[float]()

    def limit(terms: Sequence[tuple[int, float]], at_most: float) -> None:
        for column, value in terms:
            rows.append(len(limits))
            columns.append(column)
            values.append(value)
        limits.append(at_most)

    for place, (source, target) in enumerate(edges):
        transfer_s = problem.transfer_s[source]
        limit([(source, 1), (target, -1), (layers + place, transfer_s)], -problem.compute_s[source])
    for side in (0, 1):
        touching: list[list[int]] = [[] for _ in range(layers)]
        for place, edge in enumerate(edges):
            touching[edge[side]].append(layers + place)
        for places in touching:
            if len(places) > 1:
                limit([(column, -1) for column in places], 1 - len(places))
    for number in range(layers):
        if not problem.outputs[number]:
            limit([(number, 1), (makespan, -1)], -problem.compute_s[number])
    answer = linprog(
        np.eye(1, makespan + 1, makespan)[0],
        A_ub=coo_array((values, (rows, columns)), shape=(len(limits), makespan + 1)).tocsr(),
        b_ub=limits,
        bounds=[(0, None)] * layers + [(0, 1)] * count + [(0, None)],
        method="highs",
    )
    if answer.x is None:
        return favourite
    taken: set[int] = set()
    for place in np.argsort(answer.x[layers:makespan], kind="stable").tolist():
        source, target = edges[place]
        near_zero = answer.x[layers + place] < _FAVOURITE_BELOW
        if near_zero and favourite[source] < 0 and target not in taken:
            favourite[source] = target
            taken.add(target)
    return favourite


def _pack(problem: _Problem) -> list[int] | None:
    """A device for each layer by size alone; tries, within a limit, every way."""
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


def _pack_first_fit(problem: _Problem, order: Sequence[int]) -> list[int] | None:
    room, device_of = list(problem.capacity), [-1] * len(order)
    for number in order:
        fitting = [device for device, left in enumerate(room) if problem.bytes[number] <= left]
        if not fitting:
            return None
        device_of[number] = fitting[0]
        room[fitting[0]] -= problem.bytes[number]
    return device_of


def _start_times(problem: _Problem, device_of: Sequence[int], order: Sequence[int]) -> list[float]:
    """When each layer starts if the devices run them in ``order``, which is a topological one."""
    free_s = [0.0] * len(problem.capacity)
    end_s, start_s = [0.0] * len(order), [0.0] * len(order)
    transfer_s = problem.transfer_s
    for number in order:
        device = device_of[number]
        start = free_s[device]
        for each in problem.inputs[number]:
            arrival = end_s[each] if device_of[each] == device else end_s[each] + transfer_s[each]
            if arrival > start:
                start = arrival
        start_s[number] = start
        end_s[number] = free_s[device] = start + problem.compute_s[number]
    return start_s


def _makespan(problem: _Problem, device_of: Sequence[int], order: Sequence[int]) -> float:
    start_s = _start_times(problem, device_of, order)
    return max(map(float.__add__, start_s, problem.compute_s))


def _improve(problem: _Problem, schedule: _Schedule, seed: int) -> _Schedule:
    """Move and swap layers, and their turns, while that does not make it longer; now and then a step back."""
    dice = random.Random(seed)  # noqa: S311 -- the same answer every time, not a secret
    size = len(problem.bytes) + sum(map(len, problem.inputs))
    tries = min(_MOST_TRIES, _SEARCH_WORK // max(size * size, 1))
    current = (list(schedule[0]), list(schedule[1]))
    current_s = best_s = _makespan(problem, *current)
    best = (list(current[0]), list(current[1]))
    if len(problem.capacity) < 2 or len(problem.bytes) < 2:
        return best
    for number in range(tries):
        changed = _change(problem, current, dice)
        if changed is None:
            continue
        changed_s = _makespan(problem, *changed)
        heat = 0.08 * (1 - number / tries)
        if changed_s <= current_s * (1 + heat * dice.random() ** 2):
            current, current_s = changed, changed_s
        if changed_s < best_s:
            best, best_s = (list(changed[0]), list(changed[1])), changed_s
    return best


def _change(problem: _Problem, schedule: _Schedule, dice: random.Random) -> _Schedule | None:
    """A neighbour within memory, or None where the die fell on one that is not."""
    device_of, order = list(schedule[0]), list(schedule[1])
    number = dice.randrange(len(order))
    what = dice.random()
    if what < 0.4:
        device_of[number] = dice.randrange(len(problem.capacity))
    elif what < 0.7:  # where memory is tight, layers can only change places
        circle = [number, *(dice.randrange(len(order)) for _ in range(dice.randint(1, 3)))]
        before = [device_of[each] for each in circle]
        for place, each in enumerate(circle):
            device_of[each] = before[place - 1]
    if what > 0.5:
        _move_turn(problem, order, number, dice)
    return (device_of, order) if _fits(problem, device_of) else None


def _move_turn(problem: _Problem, order: list[int], number: int, dice: random.Random) -> None:
    """Give a layer another place between its inputs and its readers."""
    turn = {each: place for place, each in enumerate(order)}
    first = max((turn[each] + 1 for each in problem.inputs[number]), default=0)
    last = min((turn[each] for each in problem.outputs[number]), default=len(order)) - 1
    place = dice.randint(first, last)
    order.remove(number)
    order.insert(place, number)


def _used(problem: _Problem, device_of: Sequence[int]) -> list[float]:
    used = [0.0] * len(problem.capacity)
    for device, size in zip(device_of, problem.bytes, strict=True):
        used[device] += size
    return used


def _fits(problem: _Problem, device_of: Sequence[int]) -> bool:
    return all(used <= room for used, room in zip(_used(problem, device_of), problem.capacity, strict=True))


def _describe(problem: _Problem, device_of: list[int], order: list[int], method: str) -> Placement:
    return Placement(
        device_of=device_of,
        start_s=_start_times(problem, device_of, order),
        makespan_s=_makespan(problem, device_of, order),
        used_bytes=_used(problem, device_of),
        method=method,
    )


def _say_missing(problem: _Problem) -> str:
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
