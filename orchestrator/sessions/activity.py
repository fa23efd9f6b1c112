"""Whether a session is at work, what showed it last, and when it stops if nothing shows it any more.

A session is idle when its devices show nothing, no kernel of it computes, no program runs in the foreground of one of its
terminals, and its processes together use less than a twentieth of a processor.  That nobody is connected says nothing:
laptops sleep.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from orchestrator.live.readings import NowReadings
from orchestrator.models import Job

AT_WORK_PERCENT = 5.0  # of one processor, by all processes of the session together


class Sign(StrEnum):
    """What shows that a session is at work."""

    DEVICE = "device"
    KERNEL = "kernel"
    TERMINAL = "terminal"
    PROCESSOR = "processor"
    UNKNOWN = "unknown"  # nothing could be read, so nobody may say that it is idle


@dataclass(frozen=True, slots=True)
class SessionReading:
    """What the processes of a session did between two looks; None: it could not be read, or does not exist."""

    busy_kernels: int | None = None
    foreground_programs: int | None = None
    cpu_percent: float | None = None  # of one processor; None in the first look


def sign_in(reading: SessionReading) -> Sign | None:
    """What shows that a session is at work; None where it is idle."""
    if reading.busy_kernels:
        return Sign.KERNEL
    if reading.foreground_programs:
        return Sign.TERMINAL
    if reading.cpu_percent is None:
        return Sign.UNKNOWN
    return Sign.PROCESSOR if reading.cpu_percent >= AT_WORK_PERCENT else None


@dataclass(frozen=True, slots=True)
class Activity:
    """The last sign of work in a running session, and what follows by its pool's rule if there is no further one."""

    sign: Sign
    seen_at: datetime
    stops_at: datetime | None  # it goes to sleep then; None: the pool puts no session to sleep
    idle: bool


def activity_of(job: Job, readings: NowReadings) -> Activity | None:
    """The activity of a running session, whose pool is loaded; None before the agent has looked."""
    entry = readings.sessions.get(str(job.pk))
    if entry is None:
        return None
    seen_at = datetime.fromtimestamp(entry["seen_at"], UTC)
    stop_after_s = job.pool.idle_stop_after_s
    return Activity(
        sign=Sign(entry["sign"]),
        seen_at=seen_at,
        stops_at=seen_at + timedelta(seconds=stop_after_s) if stop_after_s and entry["idle"] else None,
        idle=entry["idle"],
    )
