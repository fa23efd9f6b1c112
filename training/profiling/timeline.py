"""Where the time of a trace of torch's profiler went: computing, copying, exchanging, waiting for data, or nothing of these.

Times are in microseconds, as the traces have them.  Pure functions.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

Span = tuple[float, float]
PARTS: Final = ("compute_s", "copy_s", "exchange_s", "data_s", "idle_s")

_GPU: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LOADING: Final = "enumerate(DataLoader)"
_EXCHANGING: Final = ("c10d::", "gloo:", "nccl:", "mpi:", "ucc:")


def summarise(trace: Mapping[str, Any], wall_s: float, thread: int) -> dict[str, float | str]:
    """The seconds of each part, which add up to ``wall_s``, and the device whose time it is.

    With work on a GPU its time counts: copies and exchanges count only while it does not compute, and waiting for
    data only where it does nothing.  Else it is the time of the thread that steps.

    Args:
        thread: the native id of the thread that steps.
    """
    events = [each for each in trace.get("traceEvents", ()) if each.get("ph") == "X" and "dur" in each]
    on_gpu = [each for each in events if each.get("cat") in _GPU]
    of_thread = [each for each in events if each.get("tid") == thread and each.get("cat") not in _GPU]
    loading = _spans(each for each in of_thread if each["name"].startswith(_LOADING))
    parts = _of_gpu(on_gpu, loading) if on_gpu else _of_cpu(events, of_thread, loading)
    told = dict(zip(PARTS, (_length_s(spans) for spans in parts), strict=False))
    idle_s = max(0.0, wall_s - sum(told.values()))
    told = {name: round(seconds, 6) for name, seconds in told.items()}
    return {**told, "idle_s": round(idle_s, 6), "device": "gpu" if on_gpu else "cpu"}


def _of_gpu(events: list[Any], loading: list[Span]) -> tuple[list[Span], ...]:
    copies = _spans(each for each in events if each["cat"] != "kernel")
    kernels = [each for each in events if each["cat"] == "kernel"]
    exchanges = _spans(each for each in kernels if "nccl" in each["name"].lower())
    compute = _spans(each for each in kernels if "nccl" not in each["name"].lower())
    copies = without(copies, compute)
    exchanges = without(without(exchanges, compute), copies)
    busy = union([*compute, *copies, *exchanges])
    return compute, copies, exchanges, without(loading, busy)


def _of_cpu(events: list[Any], of_thread: list[Any], loading: list[Span]) -> tuple[list[Span], ...]:
    own = [each for each in of_thread if each.get("cat") == "cpu_op"]
    asking = _spans(each for each in own if each["name"].startswith(_EXCHANGING))
    copies = without(_spans(each for each in own if each["name"] == "aten::copy_"), [*loading, *asking])
    compute = without(_spans(own), [*loading, *asking, *copies])
    exchanges = _spans(each for each in events if each["name"].startswith(_EXCHANGING))
    # Other threads exchange while this one computes; only what it waits for counts.
    return compute, copies, without(exchanges, [*loading, *copies, *compute]), loading


def _spans(events: Iterable[Any]) -> list[Span]:
    return union((float(each["ts"]), float(each["ts"]) + float(each["dur"])) for each in events)


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as spans that do not touch, in order."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def without(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """The time of the first that is in none of the others."""
    rest: list[Span] = []
    holes = union(others)
    at = 0
    for begin, end in union(spans):
        while at < len(holes) and holes[at][1] <= begin:
            at += 1
        for low, high in holes[at:]:
            if low >= end:
                break
            if low > begin:
                rest.append((begin, low))
            begin = max(begin, high)
        if begin < end:
            rest.append((begin, end))
    return rest


def _length_s(spans: list[Span]) -> float:
    return sum(end - begin for begin, end in spans) / 1e6
