"""Why a device that no job holds is not free for everybody: waiting jobs, retries and bookings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from berth.shared import words
from berth.shared.language import text
from orchestrator.models import LEASED_STATES, Job, JobState, SchedulerTerm
from orchestrator.scheduler import core
from orchestrator.scheduler.core.bookings import booked_devices
from orchestrator.scheduler.passes.facts import bookings
from orchestrator.scheduler.passes.job_rows import relevant_jobs
from orchestrator.scheduler.passes.retry_holds import retrying_jobs
from orchestrator.scheduler.passes.scheduling_pass import POLICY
from orchestrator.scheduler.passes.snapshot import snapshot

GRACE_S = 30.0  # between SIGTERM and the end of a job that names no grace period
LEAST_S = 60.0  # a shorter gap is of no use


@dataclass(frozen=True, slots=True)
class Restriction:
    """Why a free device is not for everybody: a waiting job, or a booking of the calendar."""

    job: Job | None = None
    booking: core.Booking | None = None
    shorter_than_s: float | None = (
        None  # jobs with a smaller time limit may start; None: no limit is short enough
    )
    pausable: bool = False  # jobs that may be stopped can start
    retry_until: datetime | None = None  # the job was killed from outside and restarts here by then

    def binds(self, username: str) -> bool:
        """Whether this restriction applies to this person."""
        return self.booking is None or username not in self.booking.owners

    def sentence(self, reader_id: int | None, now: datetime) -> str:
        """For whom and until when the device is kept, and which jobs can start on it before."""
        who = self._for_booking(now) if self.booking else self._for_job(reader_id, now)
        return f"{who}{self._others()}."

    @property
    def open_to(self) -> str:
        """Which jobs can start on it anyway, in a few words for a tile."""
        if self.shorter_than_s:
            return text("free for jobs under {limit}", limit=words.duration(self.shorter_than_s))
        return text("free for jobs that may be paused") if self.pausable else text("takes no other job")

    def _for_job(self, reader_id: int | None, now: datetime) -> str:
        assert self.job is not None  # noqa: S101  # the other kind has a booking
        mine = self.job.owner_id == reader_id
        owner = self.job.owner.get_username()
        name = text("your {job}", job=self.job.name) if mine else f"{self.job.name} ({owner})"
        if self.retry_until is not None:
            left = words.duration((self.retry_until - now).total_seconds())
            return text("Kept for the retry of {job}, for another {time}", job=name, time=left)
        if when := words.start_range(self.job.start_earliest, self.job.start_latest, now):
            return text("Kept for {job}, expected to start {when}", job=name, when=when)
        return text("Kept for {job}, when it starts is not known", job=name)

    def _for_booking(self, now: datetime) -> str:
        assert self.booking is not None  # noqa: S101  # the other kind has a job
        name = self.booking.name
        if not self.booking.owners:
            name = text("{booking} (maintenance)", booking=name)
        if self.booking.start > now.timestamp():
            wait = words.duration(self.booking.start - now.timestamp())
            return text("Reserved for {booking} in {wait}", booking=name, wait=wait)
        if self.booking.until is None:
            return text("Reserved for {booking}, with no end set", booking=name)
        left = words.duration(self.booking.until - now.timestamp())
        return text("Reserved for {booking}, for another {time}", booking=name, time=left)

    def _others(self) -> str:
        """The rest of the sentence: which other jobs can start."""
        if not self.shorter_than_s:
            return text("; a job that may be paused can start now") if self.pausable else ""
        limit = words.duration(self.shorter_than_s)
        if not self.pausable:
            return text("; a job with a time limit under {limit} can start now", limit=limit)
        return text(
            "; a job with a time limit under {limit}, or one that may be paused, can start now", limit=limit
        )


def read_restrictions(now: datetime) -> Mapping[str, list[Restriction]]:
    """All current restrictions by device, the narrowest first."""
    by_device: dict[str, list[Restriction]] = {}
    for device_id, restriction in (*_for_retries(now), *_for_jobs(now), *_for_bookings(now)):
        by_device.setdefault(device_id, []).append(restriction)
    for restrictions in by_device.values():
        restrictions.sort(key=lambda one: (one.pausable, one.shorter_than_s or 0.0))
    return by_device


def _for_jobs(now: datetime) -> Iterator[tuple[str, Restriction]]:
    term = SchedulerTerm.objects.filter(pk=1).first()
    reservations = term.reservations if term else []
    if not reservations:
        return
    waiting = Job.objects.filter(
        pk__in=[UUID(stored["job"]) for stored in reservations], state=JobState.QUEUED
    )
    jobs = {str(job.pk): job for job in waiting.select_related("owner")}
    for stored in reservations:
        if (job := jobs.get(stored["job"])) is None:
            continue  # it started or was cancelled; the next pass gives its devices away
        open_until = stored.get("open_until")
        restriction = Restriction(
            job=job,
            shorter_than_s=_gap_s(open_until, now),
            # Devices that are being cleared are for this job only.  Devices of a job that waits for others to end
            # may be lent to jobs that can be stopped.
            pausable=open_until is not None and POLICY.by_remaining and POLICY.quantum_restarts == 0,
        )
        yield from ((device_id, restriction) for device_id in stored["devices"])


def _for_retries(now: datetime) -> Iterator[tuple[str, Restriction]]:
    for job, device_ids in retrying_jobs(now):
        restriction = Restriction(job=job, retry_until=job.devices_kept_until)
        yield from ((device_id, restriction) for device_id in device_ids)


def _for_bookings(now: datetime) -> Iterator[tuple[str, Restriction]]:
    """For bookings that are on, and for bookings so near that jobs without a known end no longer start."""
    soon = now.timestamp() + POLICY.booking_notice_s
    near = [booking for booking in bookings(now) if booking.start <= soon]
    devices = devices_of(near, now) if near else {}
    for booking in near:
        gap_s = _gap_s(booking.start, now)
        restriction = Restriction(booking=booking, shorter_than_s=gap_s, pausable=gap_s is not None)
        yield from ((device_id, restriction) for device_id in devices[booking.id])


def _gap_s(until: float | None, now: datetime) -> float | None:
    """The time limit below which a job has left by then, in whole minutes; None: no job is short enough."""
    if until is None:
        return None
    gap_s = (until - now.timestamp() - GRACE_S) // 60 * 60
    return gap_s if gap_s >= LEAST_S else None


@dataclass(frozen=True, slots=True)
class BookedDevices:
    """Ids of the devices that are booked now."""

    for_people: frozenset[str] = frozenset()
    for_maintenance: frozenset[str] = frozenset()


def booked_now(now: datetime) -> BookedDevices:
    """The devices of the bookings that are on; bookings by number get the devices that passes choose."""
    current = [booking for booking in bookings(now) if booking.start <= now.timestamp()]
    devices = devices_of(current, now)
    none = frozenset[str]()
    return BookedDevices(
        for_people=none.union(*(devices[booking.id] for booking in current if booking.owners)),
        for_maintenance=none.union(*(devices[booking.id] for booking in current if not booking.owners)),
    )


def devices_of(wanted: Sequence[core.Booking], now: datetime) -> Mapping[str, frozenset[str]]:
    """The devices of each booking, by its id; reads jobs only if a booking is by number."""
    if all(booking.count is None for booking in wanted):
        return {booking.id: frozenset(booking.device_ids) for booking in wanted}
    holding = {str(job.pk): job for job in relevant_jobs(LEASED_STATES)}
    return booked_devices(replace(snapshot(now, holding), queued=()), POLICY)
