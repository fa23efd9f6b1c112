"""Splits a measured layer graph into the stages of a pipeline; prints them as JSON.

``python -m training.plan.partition PROFILE --devices 4 --bandwidth 16e9 --memory 16e9``

The search is a dynamic programme over cuts of the graph, as in PipeDream (Narayanan et al., SOSP 2019,
section 3.1), with two models of time.  ``Asynchronous`` is PipeDream's own, for comparison with its
published results; ``OneForwardOneBackward`` adds the bubble of a pipeline that ends each step together,
which is how ``training`` runs one.
"""

import argparse
import json
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, isfinite
from pathlib import Path
from typing import Any, Protocol

from training.plan.cuts import Cut, find_cuts, numbers
from training.plan.layers import LayerGraph, ProfileError, read_profile

# Bounds tried one after the other, over the perfect balance: a tight one leaves few cuts to look at.
_BOUNDS = (1.03, 1.15, 1.6, 4.0, inf)
MICRO_BATCHES = 32


class NoPartition(ValueError):
    """No split of the model fits into the devices' memory; the sentence names what is missing."""


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
                best = self._split(start, left, level, best)
            if best[1] > 0:
                chosen[start] = best
        return chosen

    def _split(self, start: int, left: int, level: int, best: _Choice) -> _Choice:
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
    return _split(graph, find_cuts(graph), model, devices, stages, below_s)


def _split(
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


def partition_asynchronous(graph: LayerGraph, devices: int, model: Asynchronous) -> Partition:
    """The quickest asynchronous pipeline over at most ``devices`` devices.

    Raises:
        NoPartition: none fits into memory.
    """
    cuts, best = find_cuts(graph), None
    for count in range(devices, 0, -1):
        below_s = best.slowest_s if best else inf
        best = _split(graph, cuts, model, count, None, below_s) or best
    return best or _refuse(graph, devices, model.memory_bytes)


def partition_synchronous(
    graph: LayerGraph, devices: int, model: OneForwardOneBackward
) -> tuple[Partition, float]:
    """The split with the quickest step over at most ``devices`` devices, and seconds of the step.

    A step of M micro-batches through S stages takes M + S - 1 turns of the slowest stage.

    Raises:
        NoPartition: none fits into memory.
    """
    cuts, best, step_s = find_cuts(graph), None, inf
    for count in range(devices, 0, -1):
        for stages in range(1, count + 1):
            turns = model.micro_batches + stages - 1
            found = _split(graph, cuts, model, count, stages, step_s / turns)
            if found:
                best, step_s = found, turns * found.slowest_s
    return best or _refuse(graph, devices, model.memory_bytes), step_s


def _refuse(graph: LayerGraph, devices: int, memory_bytes: float) -> Partition:
    needed = graph.parameter_bytes + sum(layer.activation_bytes for layer in graph.layers)
    raise NoPartition(
        f"no split over {devices} devices fits into {memory_bytes:,.0f} bytes each; parameters and "
        f"outputs of one micro-batch take {needed:,.0f}. Use more devices or a smaller micro-batch."
    )


def data_parallel_s(graph: LayerGraph, devices: int, bandwidth: float) -> float:
    """Seconds a micro-batch where every device holds the whole model, whatever its memory."""
    exchange_s = 4 * (devices - 1) * graph.parameter_bytes / (bandwidth * devices)
    return (graph.compute_s + exchange_s) / devices


def describe_partitions(
    graph: LayerGraph, devices: int, bandwidth: float, memory_bytes: float, micro_batches: int
) -> dict[str, Any]:
    """Both pipelines as JSON; throughputs over one device, to the three decimals of the published ones."""
    began_s = time.perf_counter()
    free = partition_asynchronous(graph, devices, Asynchronous(bandwidth, memory_bytes))
    took_s = time.perf_counter() - began_s
    parallel_s = data_parallel_s(graph, devices, bandwidth)
    return {
        "devices": devices,
        "stages": [asdict(stage) for stage in free.stages],
        "micro_batch_s": free.slowest_s,
        "one_device_s": graph.compute_s,
        "predicted_throughput_x": _ratio(graph.compute_s, free.slowest_s),
        "data_parallel_x": _ratio(graph.compute_s, parallel_s),
        "over_data_parallel_x": _ratio(parallel_s, free.slowest_s),
        "search_ms": round(took_s * 1000, 3),
        "synchronous": _describe_synchronous(graph, devices, bandwidth, memory_bytes, micro_batches),
    }


def _describe_synchronous(
    graph: LayerGraph, devices: int, bandwidth: float, memory_bytes: float, micro_batches: int
) -> dict[str, Any]:
    try:
        together, step_s = partition_synchronous(
            graph, devices, OneForwardOneBackward(bandwidth, memory_bytes, micro_batches)
        )
    except NoPartition as error:
        return {"micro_batches": micro_batches, "stages": None, "reason": str(error)}
    turns = micro_batches + len(together.stages) - 1
    return {
        "micro_batches": micro_batches,
        "stages": [asdict(stage) for stage in together.stages],
        "step_s": step_s,
        "predicted_throughput_x": _ratio(micro_batches * graph.compute_s, step_s),
        "bubble_percent": round(100 * (1 - micro_batches / turns), 2),
    }


def _ratio(over: float, under: float) -> float:
    return round(over / under, 3) if under else 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        graph = read_profile(options.profile)
        answer = describe_partitions(
            graph, options.devices, options.bandwidth, options.memory, options.micro_batches
        )
    except (ProfileError, NoPartition) as error:
        print(f"{error}", file=sys.stderr)  # noqa: T201 -- a command answers where it is asked
        return 2
    print(json.dumps({"profile": str(options.profile), **answer}, indent=2))  # noqa: T201 -- the same
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.plan.partition",
        description="Split a profiled model into pipeline stages and predict the throughput.",
    )
    parser.add_argument("profile", type=Path, help="profile file, as those of PipeDream")
    parser.add_argument("--devices", type=_whole, required=True, help="how many devices there are")
    parser.add_argument("--bandwidth", type=_positive, required=True, help="of a link, bytes a second")
    parser.add_argument("--memory", type=_positive, required=True, help="of a device, bytes")
    parser.add_argument(
        "--micro-batches",
        type=_whole,
        default=MICRO_BATCHES,
        help=f"in a step of the synchronous pipeline (default {MICRO_BATCHES})",
    )
    return parser.parse_args(arguments)


def _whole(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError("must be from 1 to 1024")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not (isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError("must be a number above 0, such as 16e9")
    return value


if __name__ == "__main__":
    sys.exit(main())
