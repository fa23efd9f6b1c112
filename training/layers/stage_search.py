"""The best split of a layer graph into stages, by dynamic programming over its cuts.

Follows PipeDream (Narayanan et al., SOSP 2019, section 3.1), with two time models.  ``Asynchronous`` is
PipeDream's own, for comparison with its published results; ``OneForwardOneBackward`` adds the bubble of a
synchronous pipeline, as ``training`` runs it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from training.layers.cuts import Cut, find_cuts, numbers
from training.layers.layer_graph import LayerGraph

# Bounds relative to perfect balance, tried in order: a tight bound leaves few cuts to check.
_BOUNDS = (1.03, 1.15, 1.6, 4.0, inf)


class TimeModel(Protocol):
    """The cost of a stage."""

    def stage_s(self, start: Cut, end: Cut, replicas: int, devices_after: int, stages_left: int) -> float:
        """Return the seconds per micro-batch of the stage between two cuts; infinite if it does not fit.

        ``devices_after`` counts the devices of later stages, ``stages_left`` the stages from here on.
        """


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """PipeDream's model: the slowest stage sets the pace, and replicas exchange gradients at each micro-batch.

    Memory holds outputs and parameters, once per micro-batch that is in flight in later devices, and at
    least once.
    """

    bandwidth: float  # bytes a second
    memory_bytes: float

    def stage_s(self, start: Cut, end: Cut, replicas: int, devices_after: int, stages_left: int) -> float:
        parameters = end.parameter_bytes - start.parameter_bytes
        kept = end.activation_bytes - start.activation_bytes + parameters
        if kept * max(1, ceil(devices_after / replicas)) > self.memory_bytes:
            return inf
        exchange_s = 4 * (replicas - 1) * parameters / (self.bandwidth * replicas)
        transfer_s = 2 * max(start.crossing_bytes, end.crossing_bytes) / self.bandwidth
        return max(end.compute_s - start.compute_s + exchange_s, transfer_s) / replicas


@dataclass(frozen=True, slots=True)
class OneForwardOneBackward:
    """A synchronous pipeline: replicas share each micro-batch and exchange gradients once a step.

    A stage keeps outputs of one micro-batch per stage from itself on, and parameters with gradients and two
    moments.
    """

    bandwidth: float
    memory_bytes: float
    micro_batches: int

    def stage_s(self, start: Cut, end: Cut, replicas: int, devices_after: int, stages_left: int) -> float:
        parameters = end.parameter_bytes - start.parameter_bytes
        outputs = (end.activation_bytes - start.activation_bytes) / replicas
        if outputs * min(stages_left, self.micro_batches) + 4 * parameters > self.memory_bytes:
            return inf
        exchange_s = 2 * (replicas - 1) * parameters / (self.bandwidth * replicas)
        transfer_s = 2 * max(start.crossing_bytes, end.crossing_bytes) / self.bandwidth
        busy_s = max(end.compute_s - start.compute_s, transfer_s) / replicas
        return busy_s + exchange_s / self.micro_batches


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers that run together on ``replicas`` devices."""

    layers: list[str]
    replicas: int
    compute_s: float  # of one micro-batch, on one device
    stage_s: float  # of one micro-batch, by the time model
    parameter_bytes: float
    activation_bytes: float
    output_bytes: float  # sent to later stages for one micro-batch


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in the order of the pipeline."""

    stages: list[Stage]
    slowest_s: float

    @property
    def devices(self) -> int:
        return sum(stage.replicas for stage in self.stages)


_Choice = tuple[
    float, int, int
]  # seconds of the slowest stage from here on, cut after this stage, its replicas


class _Search:
    """Finds the best splits after each cut, for a fixed number of stages or any."""

    def __init__(self, cuts: Sequence[Cut], model: TimeModel, devices: int, stages: int | None) -> None:
        self.cuts = [Cut(0, 0, 0, 0, 0), *cuts]
        self.computes = [cut.compute_s for cut in self.cuts]
        self.model, self.devices, self.stages = model, devices, stages
        self.best: dict[tuple[int, int], dict[int, _Choice]] = {}

    def run(self, bound_s: float) -> list[tuple[int, int, int]] | None:
        """Return ``(cut before, cut after, replicas)`` of each stage, if the slowest can be below ``bound_s``."""
        self.best = {}
        levels = range(1, self.stages + 1) if self.stages else range(1)
        for left in range(1, self.devices + 1):
            for level in levels:
                self.best[left, level] = self._fill(left, level, bound_s)
        return self._follow() if 0 in self.best[self.devices, levels[-1]] else None

    def _window(self, left: int, bound_s: float) -> range:
        """Return the cuts that allow both ``left`` devices after them and the others before them to meet the bound."""
        if left == self.devices:
            return range(1)
        if bound_s == inf:
            return range(1, len(self.cuts) - 1)
        first = bisect_left(self.computes, self.computes[-1] - left * bound_s)
        last = bisect_right(self.computes, (self.devices - left) * bound_s)
        return range(max(first, 1), min(last, len(self.cuts) - 1))

    def _fill(self, left: int, level: int, bound_s: float) -> dict[int, _Choice]:
        chosen: dict[int, _Choice] = {}
        end = len(self.cuts) - 1
        for start in self._window(left, bound_s):
            best: _Choice = (bound_s, -1, 0)
            if level <= 1:
                alone_s = self.model.stage_s(self.cuts[start], self.cuts[end], left, 0, 1)
                if alone_s < best[0]:
                    best = (alone_s, end, left)
            if level != 1:
                best = self.split_at(start, left, level, best)
            if best[1] > 0:
                chosen[start] = best
        return chosen

    def split_at(self, start: int, left: int, level: int, best: _Choice) -> _Choice:
        """Return the best stage that begins at ``start`` and is followed by others."""
        cuts, stage_s, here = self.cuts, self.model.stage_s, self.cuts[start]
        best_s = best[0]
        for replicas in range(1, left):
            rest = self.best[left - replicas, level - 1 if level else 0]
            for after, (rest_s, _, _) in rest.items():  # in ascending order of compute
                there = cuts[after]
                if (there.compute_s - here.compute_s) / replicas >= best_s:
                    break
                if rest_s >= best_s or after <= start or here.mask & ~there.mask:
                    continue
                slowest_s = max(rest_s, stage_s(here, there, replicas, left - replicas, level))
                if slowest_s < best_s:
                    best_s, best = slowest_s, (slowest_s, after, replicas)
        return best

    def _follow(self) -> list[tuple[int, int, int]]:
        stages, start, left, level = [], 0, self.devices, self.stages or 0
        while left:
            _, end, replicas = self.best[left, level][start]
            stages.append((start, end, replicas))
            start, left, level = end, left - replicas, level - 1 if level else 0
        return stages


def split(
    graph: LayerGraph, model: TimeModel, devices: int, *, stages: int | None = None, below_s: float = inf
) -> Partition | None:
    """Return the split on exactly ``devices`` devices with the fastest slowest stage, below ``below_s``.

    None if no split meets it.  ``stages`` fixes their number.
    """
    return split_at(graph, find_cuts(graph), model, devices, stages, below_s)


def split_at(
    graph: LayerGraph,
    cuts: Sequence[Cut],
    model: TimeModel,
    devices: int,
    stages: int | None,
    below_s: float,
) -> Partition | None:
    search = _Search(cuts, model, devices, stages)
    perfect_s = graph.compute_s / devices
    for factor in _BOUNDS:
        spans = search.run(min(factor * perfect_s if perfect_s else inf, below_s))
        if spans:
            return _describe(graph, search.cuts, model, spans)
        if factor * perfect_s >= below_s:
            break
    return None


def _describe(
    graph: LayerGraph, cuts: Sequence[Cut], model: TimeModel, spans: Sequence[tuple[int, int, int]]
) -> Partition:
    stages = []
    devices_after = sum(replicas for _, _, replicas in spans)
    for place, (first, last, replicas) in enumerate(spans):
        start, end = cuts[first], cuts[last]
        devices_after -= replicas
        stages.append(
            Stage(
                layers=[graph.layers[each].name for each in numbers(end.mask & ~start.mask)],
                replicas=replicas,
                compute_s=end.compute_s - start.compute_s,
                stage_s=model.stage_s(start, end, replicas, devices_after, len(spans) - place),
                parameter_bytes=end.parameter_bytes - start.parameter_bytes,
                activation_bytes=end.activation_bytes - start.activation_bytes,
                output_bytes=end.crossing_bytes,
            )
        )
    return Partition(stages, max(stage.stage_s for stage in stages))
