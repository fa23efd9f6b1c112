"""Processes of jobs: I2, I4, I11, I20."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

from django.conf import settings
from django.utils import timezone

from orchestrator.models import Attempt
from orchestrator.server.doctor.finding import Finding
from orchestrator.supervisor.liveness import Liveness, end_leftovers, liveness
from orchestrator.supervisor.orders import order_stop
from orchestrator.supervisor.processes import environ

PATIENCE = timedelta(seconds=10)  # beyond the grace, I11
STOP_WITHIN_S = 15.0
POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt that has processes."""

    job_id: str
    number: int


def find_running() -> dict[Running, list[int]]:
    """The pids of every attempt of this installation, by what their environment says."""
    found: dict[Running, list[int]] = defaultdict(list)
    mark = b"BERTH_ATTEMPT_FOLDER=" + os.fsencode(settings.HOME.jobs) + b"/"
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        for line in environ(int(entry.name)):
            if line.startswith(mark):
                job_id, _, number = line[len(mark) :].decode(errors="replace").partition("/attempts/")
                if number.isdigit():
                    found[Running(job_id, int(number))].append(int(entry.name))
    return dict(found)


def check_processes() -> Iterator[Finding]:
    """Every process belongs to an attempt that lives, and knows no secret of ours."""
    running = find_running()
    jobs: dict[str, set[int]] = defaultdict(set)
    for each in running:
        jobs[each.job_id].add(each.number)
    for job_id, numbers in jobs.items():
        if len(numbers) > 1:
            shown = ", ".join(map(str, sorted(numbers)))
            yield Finding("I2", f"Attempts {shown} of job {job_id} run at the same time.")
    entitled = _entitled({each.job_id for each in running})
    for each, pids in running.items():
        if each not in entitled:
            yield Finding(
                "I11",
                f"Attempt {each.number} of job {each.job_id} has ended, but its processes run.",
                "end them",
                partial(end_attempt, each.job_id, each.number),
            )
        if _knows_secrets(pids):
            yield Finding("I20", f"Attempt {each.number} of job {each.job_id} has a secret of Berth's own.")


def _entitled(job_ids: set[str]) -> set[Running]:
    """Attempts that may have processes: they live, or ended a moment ago."""
    attempts = Attempt.objects.filter(job_id__in=[each for each in job_ids if _is_uuid(each)])
    now = timezone.now()
    return {
        Running(str(attempt.job_id), attempt.number)
        for attempt in attempts.select_related("job")
        if attempt.ended_at is None
        or now < attempt.ended_at + PATIENCE + timedelta(seconds=_grace_s(attempt.job.spec_fields))
    }


def _grace_s(spec_fields: Mapping[str, float]) -> float:
    return float(spec_fields.get("grace_period_s", 30.0))


def _is_uuid(text: str) -> bool:
    return len(text) == 36 and text.count("-") == 4


def _knows_secrets(pids: list[int]) -> bool:
    password = urlsplit(os.environ.get("DATABASE_URL", "")).password
    secrets = [each.encode() for each in (str(settings.SECRET_KEY), password) if each]
    return any(secret in b"\0".join(environ(pid)) for pid in pids for secret in secrets)


def end_attempt(job_id: object, number: int, *, grace_s: float = 5.0) -> None:
    """End what runs of an attempt that must not: by its supervisor, or what a dead one left."""
    folder = settings.HOME.job(job_id).attempt(number)
    deadline_s = time.monotonic() + grace_s + STOP_WITHIN_S
    ordered = False
    while time.monotonic() < deadline_s:
        match liveness(folder):
            case Liveness.ALIVE | Liveness.UNKNOWN if not ordered:
                order_stop(folder, POLICY, grace_s)
                ordered = True
            case Liveness.DYING:
                end_leftovers(folder)
            case Liveness.ENDED | Liveness.LOST | Liveness.NEVER_STARTED:
                return
        time.sleep(0.1)
