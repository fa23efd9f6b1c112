"""Load balance by measured speed: batches between data-parallel ranks, blocks between pipeline stages."""

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from training import events
from training.data import ResumableSampler
from training.report import Reporter

if TYPE_CHECKING:
    from training.state import TrainState
    from training.strategies.interface import Strategy

SLOW_FACTOR = 1.5  # times the median rank's time; smaller differences occur by chance
SLOW_TIMES = 10  # consecutive exchanges before a rank is reported as slow
MEASURE_EVERY_S = 5.0
MOST_SHARE = 1.5  # times the planned micro-batch
_TIME_ONE_CUDA_STEP_IN = 16
_NEWEST_WEIGHT = 0.1  # of the newest measurement in the moving mean


class Clock(Protocol):
    """Measures how long this rank computes in a step before it waits for others."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def take(self) -> float:
        """Return the seconds of the newest measured step."""


class HostClock:
    """For devices whose work blocks the host."""

    def __init__(self) -> None:
        self._start_s = self._busy_s = 0.0

    def start(self) -> None:
        self._start_s = time.perf_counter()

    def stop(self) -> None:
        self._busy_s = time.perf_counter() - self._start_s

    def take(self) -> float:
        return self._busy_s


class CudaClock:
    """Uses events in the GPU's queue, in one step of sixteen; reads them once they have passed, without waiting."""

    def __init__(self) -> None:
        make_event: Any = torch.cuda.Event
        self._from, self._to = make_event(enable_timing=True), make_event(enable_timing=True)
        self._steps = 0
        self._measuring = self._under_way = False
        self._busy_s = 0.0

    def start(self) -> None:
        self._steps += 1
        self._measuring = self._steps % _TIME_ONE_CUDA_STEP_IN == 0 and not self._under_way
        if self._measuring:
            self._from.record()

    def stop(self) -> None:
        if self._measuring:
            self._to.record()
            self._under_way = True

    def take(self) -> float:
        if self._under_way and self._to.query():
            self._busy_s = self._from.elapsed_time(self._to) / 1000
            self._under_way = False
        return self._busy_s


def divide(total: int, busy_s: Sequence[float], shares: Sequence[int]) -> tuple[int, ...]:
    """Divide ``total`` into whole shares, at least 1 each, in proportion to each rank's measured speed."""
    speeds = [share / max(each_s, 1e-9) for share, each_s in zip(shares, busy_s, strict=True)]
    ideal = [max(1.0, total * speed / sum(speeds)) for speed in speeds]
    whole = [int(share) for share in ideal]
    by_remainder = sorted(range(len(ideal)), key=lambda rank: whole[rank] - ideal[rank])
    while sum(whole) < total:
        whole[by_remainder[(sum(whole) - total) % len(whole)]] += 1
    while sum(whole) > total:
        whole[whole.index(max(whole))] -= 1
    return tuple(whole)


class Balance:
    """Measures each rank's time, reports slow ranks, and redistributes the work between epochs."""

    def __init__(self, strategy: "Strategy", reporter: Reporter, *, divides: bool) -> None:
        self.clock: Clock = CudaClock() if strategy.device.type == "cuda" else HostClock()
        self._strategy = strategy
        self._reporter = reporter
        self._divides = divides
        self._busy_s: list[float] = []  # moving mean per rank
        self._slow_times = 0
        self._reported: int | None = None  # the rank last reported as slow
        self._measured_s = time.monotonic()

    def note(self, step: int, busy_s: list[float]) -> None:
        """Take the times that the ranks exchanged; they are the same on all ranks."""
        if not busy_s:
            return
        if not self._busy_s:
            self._busy_s = busy_s
        self._busy_s = [
            old + _NEWEST_WEIGHT * (new - old) for old, new in zip(self._busy_s, busy_s, strict=True)
        ]
        self._report_slow_rank(step)
        now_s = time.monotonic()
        if now_s - self._measured_s >= MEASURE_EVERY_S:
            self._measured_s = now_s
            share = self._strategy.measure_communication()
            if share is not None:
                self._reporter.report(step, comm_percent=round(100 * share, 2))

    def after_epoch(self, state: "TrainState") -> None:
        """Redistribute the work; all ranks must call this at the same step."""
        if not self._divides:
            return
        if self._strategy.staged:
            self._balance_stages(state)
        elif self._busy_s and min(self._busy_s) > 0:
            self._balance_batches(state)

    def _report_slow_rank(self, step: int) -> None:
        median_s = statistics.median_low(self._busy_s)  # of two ranks, the faster one
        slowest = max(range(len(self._busy_s)), key=self._busy_s.__getitem__)
        is_slow = self._busy_s[slowest] > SLOW_FACTOR * median_s
        self._slow_times = self._slow_times + 1 if is_slow else 0
        if self._slow_times < SLOW_TIMES or self._reported == slowest:
            return
        self._reported = slowest
        self._reporter.event(
            events.SLOW_RANK_EVENT,
            step=step,
            rank=slowest,
            busy_s=round(self._busy_s[slowest], 6),
            median_s=round(median_s, 6),
        )

    def _balance_batches(self, state: "TrainState") -> None:
        plan, ranks = self._strategy.plan, self._strategy.data_ranks
        assert isinstance(state.sampler, ResumableSampler)  # noqa: S101 -- streams are refused
        before = state.sampler.shares or (plan.batch_size,) * ranks
        shares = divide(plan.batch_size * ranks, self._busy_s, before)
        most = int(plan.batch_size * MOST_SHARE)  # limits the memory of the largest micro-batch
        if shares == before or max(shares) > max(most, plan.batch_size):
            return
        state.sampler.shares = shares
        self._busy_s = []
        self._reporter.event(events.BALANCED_EVENT, step=state.step, shares=", ".join(map(str, shares)))

    def _balance_stages(self, state: "TrainState") -> None:
        pipeline: Any = self._strategy
        bounds = pipeline.rebalance(state.model, state.optimizer)
        if bounds is not None:
            self._reporter.event(
                events.BALANCED_EVENT, step=state.step, stage_bounds=", ".join(map(str, bounds))
            )
