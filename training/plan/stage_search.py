"""The best split of a layer graph into stages: a dynamic programme over its cuts.

As in PipeDream (Narayanan et al., SOSP 2019, section 3.1), with two models of time.  ``Asynchronous`` is
PipeDream's own, for comparison with its published results; ``OneForwardOneBackward`` adds the bubble of
a pipeline that ends each step together, which is how ``training`` runs one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from training.plan.cuts import Cut, find_cuts, numbers
from training.plan.layers import LayerGraph

# Bounds tried one after the other, over the perfect balance: a tight one leaves few cuts to look at.
_BOUNDS = (1.03, 1.15, 1.6, 4.0, inf)


class TimeModel(Protocol):
    """What a stage costs."""

    def stage_s(self, start: Cut, end: Cut, replicas: int, devices_after: int, stages_left: int) -> float:
        """Seconds of a micro-batch in the stage between two cuts, infinite where it does not fit.

        ``devices_after`` counts those of later stages, ``stages_left`` the stages from here on.
        """


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """PipeDream's model: the slowest stage sets the pace, and replicas exchange gradients at each micro-batch.

    Memory is its constraint too, kept at one micro-batch at least: outputs and parameters, once for
    each micro-batch on its way through the later devices.
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

    A stage keeps the outputs of as many micro-batches as there are stages from it on, and parameters
    with gradients and two moments.
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
    stage_s: float  # of one micro-batch, as the time model counts it
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


_Choice = tuple[float, int, int]  # slowest stage from here on, the cut after this stage, its replicas


class _Search:
    """Best splits of what lies after a cut, for one number of stages or for any."""

    def __init__(self, cuts: Sequence[Cut], model: TimeModel, devices: int, stages: int | None) -> None:
        self.cuts = [Cut(0, 0, 0, 0, 0), *cuts]
        self.computes = [cut.compute_s for cut in self.cuts]
        self.model, self.devices, self.stages = model, devices, stages
        self.best: dict[tuple[int, int], dict[int, _Choice]] = {}

    def run(self, bound_s: float) -> list[tuple[int, int, int]] | None:
        """``(cut before, cut after, replicas)`` of each stage where the slowest is below ``bound_s``."""
        self.best = {}
        levels = range(1, self.stages + 1) if self.stages else range(1)
        for left in range(1, self.devices + 1):
            for level in levels:
                self.best[left, level] = self._fill(left, level, bound_s)
        return self._follow() if 0 in self.best[self.devices, levels[-1]] else None

    def _window(self, left: int, bound_s: float) -> range:
        """Cuts after which ``left`` devices can keep below the bound, and before which the others can."""
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
        """The best stage to begin with at ``start``, when others follow it."""
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
    """The split over exactly ``devices`` devices whose slowest stage is quickest, and below ``below_s``.

    None where there is none.  ``stages`` fixes their number.
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
        found = search.run(min(factor * perfect_s if perfect_s else inf, below_s))
        if found:
            return _describe(graph, search.cuts, model, found)
        if factor * perfect_s >= below_s:
            break
    return None


def _describe(
    graph: LayerGraph, cuts: Sequence[Cut], model: TimeModel, found: Sequence[tuple[int, int, int]]
) -> Partition:
    stages = []
    devices_after = sum(replicas for _, _, replicas in found)
    for place, (first, last, replicas) in enumerate(found):
        start, end = cuts[first], cuts[last]
        devices_after -= replicas
        stages.append(
            Stage(
                layers=[graph.layers[each].name for each in numbers(end.mask & ~start.mask)],
                replicas=replicas,
                compute_s=end.compute_s - start.compute_s,
                stage_s=model.stage_s(start, end, replicas, devices_after, len(found) - place),
                parameter_bytes=end.parameter_bytes - start.parameter_bytes,
                activation_bytes=end.activation_bytes - start.activation_bytes,
                output_bytes=end.crossing_bytes,
            )
        )
    return Partition(stages, max(stage.stage_s for stage in stages))
