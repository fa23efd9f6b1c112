"""Share of a step that ranks spend in collectives."""

import os
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, profiler

PROBE_FIRST_STEP = 10  # earlier steps include set-up
PROBE_EVERY_STEPS = 5000  # a profiled step takes some milliseconds more
_WHOLE = "berth step"
_COLLECTIVES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


class CommunicationProbe:
    """Profiles a step now and then, to measure the share of its time spent in collectives."""

    def __init__(self, *, active: bool) -> None:
        self._next = PROBE_FIRST_STEP if active else -1

    def is_due(self, step_here: int) -> bool:
        return step_here == self._next

    def measure(self, step: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """Run ``step``; return its result, and the share of its time in which a collective was running."""
        self._next += PROBE_EVERY_STEPS
        profile = StepProfile()
        profile.start()
        result = step()
        return result, profile.stop()


class StepProfile:
    """Measures the share of the time between ``start`` and ``stop`` in which a collective was running."""

    def __init__(self) -> None:
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise the profiler logs its trace points
        self._profile = profiler.profile(activities=activities)
        self._whole = profiler.record_function(_WHOLE)

    def start(self) -> None:
        self._profile.start()
        self._whole.__enter__()  # type: ignore[no-untyped-call]  # torch gives it no types

    def stop(self) -> float:
        """End the measurement; return the share, 0 to 1."""
        self._whole.__exit__(None, None, None)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        self._profile.stop()
        return busy_share(self._spans())

    def _spans(self) -> Iterator[tuple[str, float, float]]:
        """Name, start and end of every event, as recorded.

        `profile.events()` builds an object with forty fields for each and a tree of all of them: two seconds for a step
        of FSDP on a small model, in which the training stands still.
        """
        recorder = self._profile.profiler
        if recorder is not None and recorder.kineto_results is not None:
            for event in recorder.kineto_results.events():
                yield event.name(), event.start_ns(), event.end_ns()


def busy_share(spans: Iterable[tuple[str, float, float]]) -> float:
    """Return the share of the step, 0 to 1, covered by the union of all collectives' spans."""
    spans = list(spans)
    whole = [(start, end) for name, start, end in spans if name == _WHOLE]
    if not whole:
        return 0.0
    first, last = whole[0]
    covered, until = 0.0, first
    for start, end in sorted((start, end) for name, start, end in spans if name.startswith(_COLLECTIVES)):
        start, end = max(start, until), min(end, last)
        if end > start:
            covered, until = covered + end - start, end
    return covered / (last - first)
