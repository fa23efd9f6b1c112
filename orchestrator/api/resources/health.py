"""Whether the server works, for people, load balancers and start scripts. Needs no sign-in."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Status
from pydantic import BaseModel

from berth.shared.language import plural_text, text
from orchestrator.agent import lock
from orchestrator.live import readings as live
from orchestrator.models import Outbox

router = Router()


class DependencyOut(BaseModel):
    state: Literal["ok", "failing"]
    detail: str


class LiveOut(BaseModel):
    status: Literal["ok"]


class ReadyOut(BaseModel):
    status: Literal["ready", "degraded", "not_ready"]
    dependencies: dict[str, DependencyOut]


AGENT_AGE_S = 5.0
OUTBOX_AGE = timedelta(seconds=15)  # the agent handles what the worker left after 5 s
REDIS_TIMEOUT_S = 0.5
# Nothing can be submitted or watched without these. Without the others jobs start later.
NEEDED = frozenset({"database", "agent"})


class _Failing(Exception):
    """A dependency does not work; the text says how, without addresses or paths."""


@router.get("/live", response=LiveOut, auth=None)
def is_live(request: HttpRequest) -> LiveOut:
    """200 as long as the process answers."""
    return LiveOut(status="ok")


@router.get("/ready", response={200: ReadyOut, 503: ReadyOut}, auth=None)
def is_ready(request: HttpRequest) -> Status[ReadyOut]:
    """Each dependency with its state; 503 if the database or the agent is down."""
    states: dict[str, DependencyOut] = {}
    for name, check in _CHECKS.items():
        is_down = "database" in states and states["database"].state != "ok"
        # Each query to a database that is down takes the whole timeout.
        states[name] = _unknown() if is_down and name == "worker" else _look(check)
    failing = {name for name, dependency in states.items() if dependency.state != "ok"}
    if failing & NEEDED:
        return Status(503, ReadyOut(status="not_ready", dependencies=states))
    return Status(200, ReadyOut(status="degraded" if failing else "ready", dependencies=states))


def look_at(name: str) -> DependencyOut:
    """One dependency with its state."""
    return _look(_CHECKS[name])


def _look(check: Callable[[], str]) -> DependencyOut:
    try:
        return DependencyOut(state="ok", detail=check())
    except _Failing as failing:
        return DependencyOut(state="failing", detail=str(failing))
    except DatabaseError:
        return _unknown()


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        raise _Failing(text("does not answer")) from error
    return text("{name} answers", name=connection.display_name)


def _redis() -> str:
    try:
        with redis.Redis.from_url(
            settings.ENVIRONMENT.redis_url,
            socket_timeout=REDIS_TIMEOUT_S,
            socket_connect_timeout=REDIS_TIMEOUT_S,
        ) as client:
            client.ping()
    except (redis.RedisError, OSError) as error:
        raise _Failing(text("does not answer; jobs start some seconds late")) from error
    return text("answers")


def _worker() -> str:
    """Asking Celery takes a second; a stale outbox row says the same."""
    late = Outbox.objects.open().filter(created_at__lt=timezone.now() - OUTBOX_AGE).count()
    if late:
        late_words = plural_text(
            "{count:,} wake-up waited longer than {limit_s} s",
            "{count:,} wake-ups waited longer than {limit_s} s",
            late,
            limit_s=OUTBOX_AGE.seconds,
        )
        raise _Failing(late_words)
    return text("keeps up with its wake-ups")


def _agent() -> str:
    silent = lock.silent_holder(settings.HOME)
    if silent is not None:
        raise _Failing(
            text("runs, but has done nothing for {silent_s:.0f} s; restart it", silent_s=silent.silent_s)
        )
    readings = live.read_now()
    age_s = time.time() - readings.taken_at
    if not readings.taken_at:
        raise _Failing(text("has not read the devices yet"))
    if age_s > AGENT_AGE_S:
        raise _Failing(text("last read the devices {age_s:.0f} s ago", age_s=age_s))
    problem = f"; {text(readings.problem)}" if readings.problem else ""
    return text("read the devices {age_s:.1f} s ago", age_s=max(0.0, age_s)) + problem


def _unknown() -> DependencyOut:
    return DependencyOut(state="failing", detail=text("unknown, because the database does not answer"))


_CHECKS: dict[str, Callable[[], str]] = {
    "database": _database,
    "redis": _redis,
    "worker": _worker,
    "agent": _agent,
}
