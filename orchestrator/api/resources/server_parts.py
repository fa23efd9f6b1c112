"""The parts of this server, each with its state, its age and what to do when something is wrong."""

import shutil
import time
from collections.abc import Callable
from datetime import datetime
from typing import Literal

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models import Min
from django.utils import timezone
from pydantic import BaseModel, Field

import orchestrator
from berth.shared import words
from berth.shared.language import plural_text, text
from orchestrator.api.http.authentication import HOSTS, ApiRequest
from orchestrator.api.resources import health
from orchestrator.jobs.launch import isolation
from orchestrator.live import readings as live
from orchestrator.models import Attempt, Job, Outbox
from orchestrator.nodes.reports import Report, read_reports
from orchestrator.sentences.errors import said
from orchestrator.sessions.addresses import port_problem
from orchestrator.store.backup_record import last_backup

router = health.router  # the route is one of health's
STARTED_AT = timezone.now()  # of this web process
DISK_WARNING_PERCENT, DISK_FAILING_PERCENT = 10.0, 3.0  # free
BACKUP_WARNING_S = 3 * 24 * 3600.0
PartState = Literal["ok", "warning", "failing"]


class PartOut(BaseModel):
    """One part of the server."""

    name: str = Field(
        description="the part: web, agent, worker, redis, database, disk, backup, sandbox, queue, or node and the name of "
        "another server"
    )
    state: PartState = Field(description="ok, warning or failing")
    detail: str = Field(description="how it is, for people")
    at: datetime | None = Field(
        description="what its age counts from: its start, its last sign or last backup"
    )
    value: float | None = Field(description="its number: percent free, level, rows or jobs; null: none")
    remedy: str = Field(description="what to do, for people; empty: nothing")


class PartsOut(BaseModel):
    version: str = Field(description="of Berth")
    state: PartState = Field(description="the worst of all parts")
    parts: list[PartOut] = Field(description="every part of the server")


@router.get("/parts", response=PartsOut, auth=HOSTS)
def list_parts(request: ApiRequest) -> PartsOut:
    """Every part of the server with its state, age and remedy; for operators of every pool."""
    return read_parts()


def read_parts() -> PartsOut:
    """Look at every part now; costs a few queries and one ping."""
    parts = [*(look() for look in _PARTS), *map(_node, read_reports(settings.HOME.nodes))]
    states = {part.state for part in parts}
    worst: PartState = "failing" if "failing" in states else "warning" if "warning" in states else "ok"
    return PartsOut(version=orchestrator.__version__, state=worst, parts=parts)


def _part(
    name: str,
    state: PartState,
    detail: str,
    *,
    at: datetime | None = None,
    value: float | None = None,
    remedy: str = "",
) -> PartOut:
    return PartOut(name=name, state=state, detail=detail, at=at, value=value, remedy=remedy)


def _web() -> PartOut:
    problem = port_problem(settings.HOME.services)
    return _part(
        "web",
        "warning" if problem else "ok",
        text("answers this page; started"),
        at=STARTED_AT,
        remedy=text(problem),
    )


def _agent() -> PartOut:
    found = health.look_at("agent")
    taken_at = live.read_now().taken_at
    at = datetime.fromtimestamp(taken_at, tz=timezone.get_current_timezone()) if taken_at else None
    remedy = (
        ""
        if found.state == "ok"
        else text(
            "Jobs keep running, but none starts or ends. Restart it: manage.py up, or systemctl restart berth-agent."
        )
    )
    return _part("agent", found.state, found.detail, at=at, remedy=remedy)


def _worker() -> PartOut:
    found = health.look_at("worker")
    remedy = (
        ""
        if found.state == "ok"
        else text(
            "Jobs start some seconds late. Restart it: manage.py up, or systemctl restart berth-worker."
        )
    )
    try:
        waiting = Outbox.objects.open().aggregate(oldest=Min("created_at"))
        count: float | None = Outbox.objects.open().count()
    except DatabaseError:
        waiting, count = {"oldest": None}, None
    return _part("worker", found.state, found.detail, at=waiting["oldest"], value=count, remedy=remedy)


def _redis() -> PartOut:
    found = health.look_at("redis")
    own = (
        "Jobs keep running; pages update once a second. It starts with manage.py up."
        if settings.ENVIRONMENT.own_redis
        else "Jobs keep running; pages update once a second. Look at the server of BERTH_REDIS_URL."
    )
    remedy = "" if found.state == "ok" else text(own)
    return _part("redis", "ok" if found.state == "ok" else "warning", found.detail, remedy=remedy)


def _database() -> PartOut:
    found = health.look_at("database")
    remedy = (
        ""
        if found.state == "ok"
        else text("Nothing can be submitted. Start the database, then look at its log.")
    )
    size_bytes = _database_bytes()
    size = "" if size_bytes is None else f", {words.size(size_bytes)}"
    return _part("database", found.state, f"{found.detail}{size}", value=size_bytes, remedy=remedy)


def _database_bytes() -> int | None:
    if connection.vendor != "sqlite":
        return None
    try:
        path = settings.DATABASES["default"]["NAME"]
        return int(path.stat().st_size) if hasattr(path, "stat") else None
    except OSError:
        return None


def _disk() -> PartOut:
    usage = shutil.disk_usage(settings.HOME.root)
    free_percent = 100 * usage.free / usage.total
    state: PartState = "ok"
    if free_percent < DISK_WARNING_PERCENT:
        state = "failing" if free_percent < DISK_FAILING_PERCENT else "warning"
    remedy = (
        ""
        if state == "ok"
        else text("Remove old jobs (manage.py clean_up), lower BERTH_KEEP_DAYS, or add space.")
    )
    detail = text("{free} of {total} free", free=words.size(usage.free), total=words.size(usage.total))
    return _part("disk", state, detail, value=round(free_percent, 1), remedy=remedy)


def _backup() -> PartOut:
    record = last_backup(settings.HOME)
    remedy = text(
        "Write one now (manage.py backup, or manage.py snapshot), and let a timer do it: docs, Back up."
    )
    if record is None:
        return _part("backup", "warning", text("none was written yet"), remedy=remedy)
    at = datetime.fromtimestamp(record.at, tz=timezone.get_current_timezone())
    is_old = time.time() - record.at > BACKUP_WARNING_S
    detail = text(
        "the last {kind}, {size}, written", kind=text(record.kind), size=words.size(record.size_bytes)
    )
    return _part("backup", "warning" if is_old else "ok", detail, at=at, remedy=remedy if is_old else "")


def _sandbox() -> PartOut:
    level = (live.read_now().sandbox or isolation.reading())["level"]
    described = isolation.describe(level)
    name = described["name"] if described else text("none")
    detail = text("level {level}, {name}", level=level, name=name)
    if sentence := isolation.problem():
        return _part("sandbox", "failing", detail, value=level, remedy=said(sentence))
    remedy = "" if level else text("Jobs see each other's files. manage.py doctor says what is missing.")
    return _part("sandbox", "ok" if level else "warning", detail, value=level, remedy=remedy)


def _queue() -> PartOut:
    try:
        waiting = Job.objects.queued()
        count, oldest = waiting.count(), waiting.aggregate(at=Min("queued_at"))["at"]
        running = Job.objects.filter(state="running").count()
    except DatabaseError:
        return _part("queue", "failing", text("unknown, because the database does not answer"))
    detail = plural_text(
        "{count:,} job waiting, {running} running",
        "{count:,} jobs waiting, {running} running",
        count,
        running=running,
    )
    if oldest:
        detail = text("{detail}; the oldest since", detail=detail)
    return _part("queue", "ok", detail, at=oldest, value=count)


def _node(report: Report) -> PartOut:
    """Another server that lends its devices."""
    at = datetime.fromtimestamp(report.at, tz=timezone.get_current_timezone())
    jobs = Attempt.objects.on_node(report.name).count()
    has = f"{words.plural(len(report.devices), 'device')}, {words.plural(jobs, 'job')}"
    if report.is_silent:
        remedy = text(
            "Its jobs go on there, or are lost if it was restarted. See to it that node join runs there. If it will "
            "not come back: {command}.",
            command=words.server_command(f"node leave {report.name}"),
        )
        detail = text("{has}; last answered", has=has)
        return _part(f"node {report.name}", "failing", detail, at=at, remedy=remedy)
    host = report.host
    detail = text(
        "{has}, CPU {cpu_percent:.0f} %, {size} of disk free",
        has=has,
        cpu_percent=host["cpu_percent"],
        size=words.size(host["disk_free_bytes"]),
    )
    if report.problem:
        return _part(f"node {report.name}", "warning", detail, value=jobs, remedy=text(report.problem))
    return _part(f"node {report.name}", "ok", detail, value=jobs)


_PARTS: tuple[Callable[[], PartOut], ...] = (
    _web,
    _agent,
    _worker,
    _redis,
    _database,
    _disk,
    _backup,
    _sandbox,
    _queue,
)
