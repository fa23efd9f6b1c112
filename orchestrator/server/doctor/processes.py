"""Processes of jobs, and the agent."""

import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

from django.conf import settings
from django.utils import timezone

from berth.shared.words import server_command
from orchestrator.agent import lock
from orchestrator.models import Attempt
from orchestrator.server.doctor.findings import Finding
from orchestrator.sessions.addresses import port_problem
from orchestrator.supervisor.linux.processes import environ
from orchestrator.supervisor.liveness import Liveness, end_leftovers, liveness
from orchestrator.supervisor.protocol.orders import order_stop
from orchestrator.supervisor.watch.stalls import find_stopped

PATIENCE = timedelta(seconds=10)  # beyond the grace period
STOP_WITHIN_S = 15.0
RAY_ANSWERS_WITHIN_S = 2.0
POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt with processes."""

    job_id: str
    number: int


def find_running() -> dict[Running, list[int]]:
    """The pids of all attempts of this installation, found by their environment."""
    running: dict[Running, list[int]] = defaultdict(list)
    mark = b"BERTH_ATTEMPT_FOLDER=" + os.fsencode(settings.HOME.jobs) + b"/"
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        for line in environ(int(entry.name)):
            if line.startswith(mark):
                job_id, _, number = line[len(mark) :].decode(errors="replace").partition("/attempts/")
                if number.isdigit():
                    running[Running(job_id, int(number))].append(int(entry.name))
    return dict(running)


def check_processes() -> Iterator[Finding]:
    """Every process belongs to an unfinished attempt, and has none of Berth's secrets in its environment."""
    running = find_running()
    jobs: dict[str, set[int]] = defaultdict(set)
    for each in running:
        jobs[each.job_id].add(each.number)
    for job_id, numbers in jobs.items():
        if len(numbers) > 1:
            numbers_text = ", ".join(map(str, sorted(numbers)))
            yield Finding("I2", f"Attempts {numbers_text} of job {job_id} run at the same time.")
    entitled = _entitled({each.job_id for each in running})
    for each, pids in running.items():
        if each not in entitled:
            yield Finding(
                "I11",
                f"Attempt {each.number} of job {each.job_id} has ended, but its processes still run.",
                "end them",
                partial(end_attempt, each.job_id, each.number),
            )
        if _knows_secrets(pids):
            yield Finding("I20", f"Attempt {each.number} of job {each.job_id} has a secret of Berth's own.")


def _entitled(job_ids: set[str]) -> set[Running]:
    """Attempts that may have processes: unfinished, or ended a moment ago."""
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


def check_sessions_port() -> Iterator[Finding]:
    """Browsers reach sessions."""
    if sentence := port_problem(settings.HOME.services):
        yield Finding("F69", sentence)


def check_ray() -> Iterator[Finding]:
    """Where others may join this server, Ray listens for them as long as the agent works."""
    address = settings.ENVIRONMENT.nodes
    if address is None or lock.holder(settings.HOME) is None:
        return
    host, port = address
    try:
        socket.create_connection((host.strip("[]"), port), timeout=RAY_ANSWERS_WITHIN_S).close()
    except OSError as error:
        yield Finding(
            "F69",
            f"Other servers cannot join: Ray does not answer at {host}:{port} ({error.strerror or error}). It takes up to "
            "a minute to start; if it stays away, read its log, or set BERTH_NODES to another port.",
        )


def end_attempt(job_id: object, number: int, *, grace_s: float = 5.0) -> None:
    """End an attempt's processes, through its supervisor or directly if that is dead."""
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


def check_reaping() -> Iterator[Finding]:
    """No unfinished attempt has a stopped supervisor or sandbox, which would hide its end."""
    for attempt in Attempt.objects.live().select_related("job"):
        stopped = find_stopped(settings.HOME.job(attempt.job_id).attempt(attempt.number))
        if not stopped:
            continue
        sentence = (
            f"Attempt {attempt.number} of {attempt.job}: {' and '.join(stopped)} was stopped (SIGSTOP or "
            "a debugger), so the end of the attempt would not be noticed."
        )
        if stopped[0] == "its supervisor":
            yield Finding("I11", f"{sentence} Send it SIGCONT, or kill it: the job then resumes.")
        else:
            yield Finding(
                "I11", sentence, "end the attempt", partial(end_attempt, attempt.job_id, attempt.number)
            )


def check_agent() -> Iterator[Finding]:
    """An agent that holds its lock also works; otherwise nobody reacts to jobs."""
    holder = lock.silent_holder(settings.HOME)
    if holder is None or holder.process is None:
        return
    yield Finding(
        "I15",
        f"The agent (pid {holder.process.pid}) holds its lock, but has not worked for more than "
        f"{lock.SILENT_AFTER_S:.0f} s; jobs neither start nor end.",
        f"end it; `{server_command('up')}` starts another",
        holder.end,
    )
