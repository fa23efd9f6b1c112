"""Measures how much jobs on one device slow each other: steps/s with and without a neighbour."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.devices.types import Reading
from orchestrator.jobs.memory_claims import memory_key
from orchestrator.models import Attempt, JobState, Lease
from orchestrator.scheduler.passes import neighbours

LEAST_S = 10.0  # a shorter measurement is mostly noise
LEAST_STEPS = 10
MEASURE_S = 60.0  # then the measurement is kept, and the next begins
SILENT_S = 60.0  # a neighbour that reports no steps counts as at work after this long
FOREIGN_BYTES = 64 * 2**20  # external processes that hold more spoil a measurement


@dataclass(slots=True)
class _Measurement:
    """An attempt's steps while its neighbours are the same."""

    attempt: Attempt
    device_name: str
    beside: Mapping[int, str]  # the works of its neighbours, by attempt
    began: tuple[int, float] | None = None  # the first report after it began: step and time
    last: tuple[int, float] | None = None
    uses: list[float] = field(default_factory=list)  # of its devices, 0 to 1

    def take(self, use: float | None) -> None:
        job = self.attempt.job
        if job.step is None or job.last_report_at is None:
            return
        report = (job.step, job.last_report_at.timestamp())
        if self.began is None or report[0] < (self.last or self.began)[0]:
            self.began, self.last = report, None  # it began, or repeats steps
        elif report != self.began:
            self.last = report
        if use is not None:
            self.uses.append(use)

    @property
    def lasted_s(self) -> float:
        return 0.0 if self.began is None or self.last is None else self.last[1] - self.began[1]

    @property
    def steps_per_s(self) -> float | None:
        """None while the measurement is too short to say anything."""
        if self.began is None or self.last is None or self.lasted_s < LEAST_S:
            return None
        steps = self.last[0] - self.began[0]
        return steps / self.lasted_s if steps >= LEAST_STEPS else None


class NeighbourWatch:
    """Call ``note`` with every round of readings."""

    def __init__(self) -> None:
        self._measured: dict[int, _Measurement] = {}  # by attempt
        self._alone: dict[int, float] = {}  # steps/s of attempts while they had their devices for themselves
        self._unlike: dict[
            int, tuple[str, str, float]
        ] = {}  # device, neighbour's work and steps/s, until alone
        self._silent_since: dict[int, float] = {}

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease], now: datetime, now_s: float) -> None:
        """Take one round of readings.

        Args:
            leases: all active ones, with attempt, job and device.
            now_s: monotonic clock.
        """
        by_attempt: dict[int, list[Lease]] = defaultdict(list)
        on_device: dict[str, set[int]] = defaultdict(set)
        for lease in leases:
            by_attempt[lease.attempt_id].append(lease)
            on_device[lease.device_id].add(lease.attempt_id)
        uses = {reading.device_id: _use(reading) for reading in readings if _is_ours_alone(reading)}
        at_work = {pk for pk, held in by_attempt.items() if self._is_at_work(held[0].attempt, now_s)}
        for pk, held in by_attempt.items():
            others = {other for lease in held for other in on_device[lease.device_id]} - {pk}
            clear = all(lease.device_id in uses for lease in held) and {pk, *others} <= at_work
            beside = {other: _work(by_attempt[other][0].attempt) for other in others} if clear else None
            self._follow(held, beside, uses, now)
        for pk in self._measured.keys() - by_attempt.keys():
            self._keep(self._measured.pop(pk), now)
        for by_pk in (self._alone, self._unlike, self._silent_since):
            for pk in by_pk.keys() - by_attempt.keys():
                del by_pk[pk]

    def _is_at_work(self, attempt: Attempt, now_s: float) -> bool:
        """Whether an attempt trains already: what it does while it starts says nothing of its steps."""
        if attempt.job.state != JobState.RUNNING:
            return False
        if attempt.first_step_at is not None:
            return True
        return now_s - self._silent_since.setdefault(attempt.pk, now_s) >= SILENT_S

    def _follow(
        self,
        held: Sequence[Lease],
        beside: Mapping[int, str] | None,
        uses: Mapping[str, float | None],
        now: datetime,
    ) -> None:
        attempt = held[0].attempt
        measured = self._measured.get(attempt.pk)
        if measured is not None and (measured.beside != beside or measured.lasted_s >= MEASURE_S):
            self._keep(self._measured.pop(attempt.pk), now)
            measured = None
        if beside is None or len({lease.device.name for lease in held}) > 1:
            return
        if measured is None:
            measured = self._measured[attempt.pk] = _Measurement(attempt, held[0].device.name, beside)
        measured.attempt = attempt  # the row as it is now
        seen = [use for lease in held if (use := uses[lease.device_id]) is not None]
        measured.take(sum(seen) / len(seen) if seen else None)

    def _keep(self, measured: _Measurement, now: datetime) -> None:
        """Keep a measurement that is over, if it was long enough."""
        rate, attempt = measured.steps_per_s, measured.attempt
        if rate is None:
            return
        work = _work(attempt)
        if not measured.beside:
            self._keep_alone(measured, work, rate, now)
        elif len(measured.beside) == 1:  # of several neighbours nobody knows which one slows it
            other = next(iter(measured.beside.values()))
            alone = self._alone.get(attempt.pk) or neighbours.rate_alone(measured.device_name, work)
            if alone is None:
                self._unlike[attempt.pk] = (measured.device_name, other, rate)
            else:
                neighbours.note_slowdown(measured.device_name, work, other, alone / rate, now)

    def _keep_alone(self, measured: _Measurement, work: str, rate: float, now: datetime) -> None:
        use = sum(measured.uses) / len(measured.uses) if measured.uses else None
        self._alone[measured.attempt.pk] = rate
        neighbours.note_alone(measured.device_name, work, rate, use, now)
        earlier = self._unlike.pop(measured.attempt.pk, None)
        if earlier is not None and earlier[0] == measured.device_name:
            neighbours.note_slowdown(measured.device_name, work, earlier[1], rate / earlier[2], now)


def _work(attempt: Attempt) -> str:
    return attempt.memory_key or memory_key(attempt.job.spec_fields, attempt.job.bundle)


def _use(reading: Reading) -> float | None:
    return None if reading.utilization_percent is None else reading.utilization_percent / 100


def _is_ours_alone(reading: Reading) -> bool:
    """Whether a reading is fresh and no external process slows the jobs on the device."""
    foreign_bytes = sum(process.used_bytes for process in reading.processes if process.attempt is None)
    return not (reading.stale or reading.lost) and foreign_bytes <= FOREIGN_BYTES
