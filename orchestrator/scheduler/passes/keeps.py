"""For whom devices are kept that nobody holds, and which other jobs may start on them all the same."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from berth import words
from orchestrator.models import Job, JobState, SchedulerTerm
from orchestrator.scheduler import core
from orchestrator.scheduler.passes.booked import devices_of
from orchestrator.scheduler.passes.calendar import bookings
from orchestrator.scheduler.passes.passes import POLICY
from orchestrator.scheduler.passes.retry_keeps import retrying_jobs

GRACE_S = 30.0  # between SIGTERM and the end, of a job that names no other
LEAST_S = 60.0  # a gap that is shorter is of no use


@dataclass(frozen=True, slots=True)
class Keep:
    """Why a free device is not for everybody: a waiting job, or an entry of the calendar."""

    job: Job | None = None
    booking: core.Booking | None = None
    shorter_than_s: float | None = (
        None  # jobs with a smaller time limit may start; None: no limit is short enough
    )
    pausable: bool = False  # jobs that may be stopped may start
    retry_until: datetime | None = None  # the job was killed from outside, and goes on here by then

    def binds(self, username: str) -> bool:
        """Whether it keeps the device from this person."""
        return self.booking is None or username not in self.booking.owners

    def sentence(self, reader_id: int | None, now: datetime) -> str:
        """For whom and until when, and who may have the device before."""
        who = self._for_booking(now) if self.booking else self._for_job(reader_id, now)
        others = self._others()
        return f"{who}; {others} can start now." if others else f"{who}."

    @property
    def open_to(self) -> str:
        """Who may start on it all the same, in the few words of a tile."""
        if self.shorter_than_s:
            return f"free for jobs under {words.duration(self.shorter_than_s)}"
        return "free for jobs that may be paused" if self.pausable else "takes no other job"

    def _for_job(self, reader_id: int | None, now: datetime) -> str:
        assert self.job is not None  # noqa: S101  # the other kind has a booking
        mine = self.job.owner_id == reader_id
        name = f"your {self.job.name}" if mine else f"{self.job.name} ({self.job.owner.get_username()})"
        if self.retry_until is not None:
            left = words.duration((self.retry_until - now).total_seconds())
            return f"Kept for the retry of {name}, for another {left}"
        when = words.start_range(self.job.start_earliest, self.job.start_latest, now)
        return f"Kept for {name}, {f'expected to start {when}' if when else 'when it starts is not known'}"

    def _for_booking(self, now: datetime) -> str:
        assert self.booking is not None  # noqa: S101  # the other kind has a job
        name = self.booking.name if self.booking.owners else f"{self.booking.name} (maintenance)"
        if self.booking.start > now.timestamp():
            return f"Reserved for {name} in {words.duration(self.booking.start - now.timestamp())}"
        if self.booking.until is None:
            return f"Reserved for {name}, with no end set"
        return f"Reserved for {name}, for another {words.duration(self.booking.until - now.timestamp())}"

    def _others(self) -> str:
        limit = (
            f"a job with a time limit under {words.duration(self.shorter_than_s)}"
            if self.shorter_than_s
            else ""
        )
        if not self.pausable:
            return limit
        return f"{limit}, or one that may be paused," if limit else "a job that may be paused"


def read_keeps(now: datetime) -> Mapping[str, list[Keep]]:
    """Everything that keeps each device now, by device; the narrowest first."""
    found: dict[str, list[Keep]] = {}
    for device_id, keep in (*_for_retries(now), *_for_jobs(now), *_for_bookings(now)):
        found.setdefault(device_id, []).append(keep)
    for keeps in found.values():
        keeps.sort(key=lambda keep: (keep.pausable, keep.shorter_than_s or 0.0))
    return found


def _for_jobs(now: datetime) -> Iterator[tuple[str, Keep]]:
    term = SchedulerTerm.objects.filter(pk=1).first()
    reservations = term.reservations if term else []
    if not reservations:
        return
    waiting = Job.objects.filter(pk__in=[UUID(each["job"]) for each in reservations], state=JobState.QUEUED)
    jobs = {str(job.pk): job for job in waiting.select_related("owner")}
    for each in reservations:
        if (job := jobs.get(each["job"])) is None:
            continue  # it started or was taken back; the next pass gives its devices away
        open_until = each.get("open_until")
        keep = Keep(
            job=job,
            shorter_than_s=_gap_s(open_until, now),
            # Devices that are being cleared are nobody else's; what waits for others to end may be lent to
            # whoever can be stopped for it.
            pausable=open_until is not None and POLICY.by_remaining and POLICY.quantum_restarts == 0,
        )
        yield from ((device_id, keep) for device_id in each["devices"])


def _for_retries(now: datetime) -> Iterator[tuple[str, Keep]]:
    for job, device_ids in retrying_jobs(now):
        keep = Keep(job=job, retry_until=job.devices_kept_until)
        yield from ((device_id, keep) for device_id in device_ids)


def _for_bookings(now: datetime) -> Iterator[tuple[str, Keep]]:
    """Of those that are on, and of those before which a job without a known end is not started any more."""
    soon = now.timestamp() + POLICY.booking_notice_s
    near = [each for each in bookings(now) if each.start <= soon]
    devices = devices_of(near, now) if near else {}
    for each in near:
        gap_s = _gap_s(each.start, now)
        keep = Keep(booking=each, shorter_than_s=gap_s, pausable=gap_s is not None)
        yield from ((device_id, keep) for device_id in devices[each.id])


def _gap_s(until: float | None, now: datetime) -> float | None:
    """The time limit below which a job is gone by then, in whole minutes; None: there is none."""
    if until is None:
        return None
    gap_s = (until - now.timestamp() - GRACE_S) // 60 * 60
    return gap_s if gap_s >= LEAST_S else None
