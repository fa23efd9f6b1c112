"""Whether the server works, for people, load balancers and start scripts; open to everyone."""

import time
from collections.abc import Callable
from datetime import timedelta

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Status

from orchestrator.agent import lock
from orchestrator.api.schemas import LiveOut, ReadyOut
from orchestrator.live import readings as live
from orchestrator.models import Outbox

router = Router()

AGENT_AGE_S = 5.0
ERRAND_AGE = timedelta(seconds=15)  # the agent carries out what the worker left after 5 s
REDIS_TIMEOUT_S = 0.5
# Without these nothing can be submitted or watched; without the others jobs still start, only later.
NEEDED = frozenset({"database", "agent"})


class _Failing(Exception):
    """A dependency does not work; the text says how, without addresses or paths."""


@router.get("/live", response=LiveOut, auth=None)
def is_live(request: HttpRequest) -> object:
    """200 as long as the process answers."""
    return {"status": "ok"}


@router.get("/ready", response={200: ReadyOut, 503: ReadyOut}, auth=None)
def is_ready(request: HttpRequest) -> object:
    """Each dependency with its state; 503 when the database or the agent is missing."""
    found: dict[str, dict[str, str]] = {}
    for name, check in _CHECKS.items():
        is_down = "database" in found and found["database"]["state"] != "ok"
        # Each question to a database that is down takes its whole patience.
        found[name] = _UNKNOWN if is_down and name == "worker" else _look(check)
    failing = {name for name, each in found.items() if each["state"] != "ok"}
    status = "not_ready" if failing & NEEDED else "degraded" if failing else "ready"
    return Status(503 if failing & NEEDED else 200, {"status": status, "dependencies": found})


def _look(check: Callable[[], str]) -> dict[str, str]:
    try:
        return {"state": "ok", "detail": check()}
    except _Failing as failing:
        return {"state": "failing", "detail": str(failing)}
    except DatabaseError:
        return _UNKNOWN


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        raise _Failing("does not answer") from error
    return f"{connection.display_name} answers"


def _redis() -> str:
    try:
        with redis.Redis.from_url(
            settings.ENVIRONMENT.redis_url,
            socket_timeout=REDIS_TIMEOUT_S,
            socket_connect_timeout=REDIS_TIMEOUT_S,
        ) as client:
            client.ping()
    except (redis.RedisError, OSError) as error:
        raise _Failing("does not answer; jobs start with up to some seconds of delay") from error
    return "answers"


def _worker() -> str:
    """Asking Celery takes a second; an errand that nobody did says the same."""
    late = Outbox.objects.open().filter(created_at__lt=timezone.now() - ERRAND_AGE).count()
    if late:
        raise _Failing(f"{late} errand{'' if late == 1 else 's'} waited longer than {ERRAND_AGE.seconds} s")
    return "no errand waits for long"


def _agent() -> str:
    silent = lock.silent_holder(settings.HOME)
    if silent is not None:
        raise _Failing(f"runs, but has not worked for {silent.silent_s:.0f} s; restart it")
    readings = live.read_now()
    age_s = time.time() - readings.taken_at
    if not readings.taken_at:
        raise _Failing("has not read the devices yet")
    if age_s > AGENT_AGE_S:
        raise _Failing(f"last read the devices {age_s:.0f} s ago")
    problem = f"; {readings.problem}" if readings.problem else ""
    return f"read the devices {max(0.0, age_s):.1f} s ago{problem}"


_UNKNOWN = {"state": "failing", "detail": "is not known, because the database does not answer"}
_CHECKS: dict[str, Callable[[], str]] = {
    "database": _database,
    "redis": _redis,
    "worker": _worker,
    "agent": _agent,
}
