"""Splits a measured layer graph into pipeline stages, and prints them as JSON.

``python -m training.plan.partition PROFILE --devices 4 --bandwidth 16e9 --memory 16e9``
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import inf, isfinite
from pathlib import Path
from typing import NotRequired, TypedDict

from training.layers.cuts import find_cuts
from training.layers.layer_graph import LayerGraph, ProfileError, read_profile
from training.layers.stage_search import Asynchronous, OneForwardOneBackward, Partition, split_at

MICRO_BATCHES = 32


class NoPartition(ValueError):
    """No split of the model fits into the devices' memory; the message names what is missing."""


def partition_asynchronous(graph: LayerGraph, devices: int, model: Asynchronous) -> Partition:
    """Return the fastest asynchronous pipeline on at most ``devices`` devices.

    Raises:
        NoPartition: no split fits into memory.
    """
    cuts, best = find_cuts(graph), None
    for count in range(devices, 0, -1):
        below_s = best.slowest_s if best else inf
        best = split_at(graph, cuts, model, count, None, below_s) or best
    return best or _refuse(graph, devices, model.memory_bytes)


def partition_synchronous(
    graph: LayerGraph, devices: int, model: OneForwardOneBackward
) -> tuple[Partition, float]:
    """Return the split with the fastest step on at most ``devices`` devices, and its seconds.

    A step of M micro-batches through S stages takes M + S - 1 rounds of the slowest stage.

    Raises:
        NoPartition: no split fits into memory.
    """
    cuts, best, step_s = find_cuts(graph), None, inf
    for count in range(devices, 0, -1):
        for stages in range(1, count + 1):
            turns = model.micro_batches + stages - 1
            candidate = split_at(graph, cuts, model, count, stages, step_s / turns)
            if candidate:
                best, step_s = candidate, turns * candidate.slowest_s
    return best or _refuse(graph, devices, model.memory_bytes), step_s


def _refuse(graph: LayerGraph, devices: int, memory_bytes: float) -> Partition:
    needed = graph.parameter_bytes + sum(layer.activation_bytes for layer in graph.layers)
    raise NoPartition(
        f"no split over {devices} devices fits into {memory_bytes:,.0f} bytes each; parameters and "
        f"outputs of one micro-batch take {needed:,.0f}. Use more devices or a smaller micro-batch."
    )


def data_parallel_s(graph: LayerGraph, devices: int, bandwidth: float) -> float:
    """Return the seconds per micro-batch if every device holds the whole model, ignoring memory."""
    exchange_s = 4 * (devices - 1) * graph.parameter_bytes / (bandwidth * devices)
    return (graph.compute_s + exchange_s) / devices


class DescribedStages(TypedDict):
    """A synchronous pipeline; ``stages`` is None if there is none, for this reason."""

    micro_batches: int
    stages: list[dict[str, float]] | None
    reason: NotRequired[str]
    step_s: NotRequired[float]
    predicted_throughput_x: NotRequired[float]
    bubble_percent: NotRequired[float]


class DescribedPartitions(TypedDict):
    """Both pipelines; throughputs are relative to one device."""

    devices: int
    stages: list[dict[str, float]]
    micro_batch_s: float
    one_device_s: float
    predicted_throughput_x: float
    data_parallel_x: float
    over_data_parallel_x: float
    search_ms: float
    synchronous: DescribedStages


def describe_partitions(
    graph: LayerGraph, devices: int, bandwidth: float, memory_bytes: float, micro_batches: int
) -> DescribedPartitions:
    """Describe both pipelines as JSON; throughputs relative to one device, with three decimals as published."""
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
) -> DescribedStages:
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
        print(f"{error}", file=sys.stderr)  # noqa: T201 -- the answer of the command
        return 2
    print(json.dumps({"profile": str(options.profile), **answer}, indent=2))  # noqa: T201 -- the answer of the command
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.plan.partition",
        description="Split a profiled model into pipeline stages and predict the throughput.",
    )
    parser.add_argument("profile", type=Path, help="profile file in PipeDream's format")
    parser.add_argument("--devices", type=_whole, required=True, help="number of devices")
    parser.add_argument(
        "--bandwidth", type=_positive, required=True, help="bandwidth of a link, bytes per second"
    )
    parser.add_argument("--memory", type=_positive, required=True, help="memory of a device, bytes")
    parser.add_argument(
        "--micro-batches",
        type=_whole,
        default=MICRO_BATCHES,
        help=f"micro-batches per step of the synchronous pipeline (default {MICRO_BATCHES})",
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
