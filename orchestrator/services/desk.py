"""What the web process knows of each service: its line, its traffic, and which replicas answer."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID

from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async
from django.conf import settings
from django.utils import timezone

from orchestrator.models import Service, ServiceKey, ServiceReplica, ServiceState
from orchestrator.services import controller, health, keys
from orchestrator.services.line import Line
from orchestrator.services.traffic import Traffic
from orchestrator.supervisor.protocol.folder import AttemptFolder

LOOK_EVERY_S = 0.25  # which replicas answer
OLD_S = 2.0  # what was read before that is read again before a request is passed on
LOOK_COLD_EVERY_S = 0.05  # while requests wait for the first one
TELL_EVERY_S = 1.0
KEY_KEPT_S = 1.0  # a removed key opens nothing after that
MOST_KEYS = 1000  # that are kept
# The thread that asks the database is that of all sessions and services, so it must not wait for a program's answer.
_ASKING = ThreadPoolExecutor(16, thread_name_prefix="ask")
PEAK_S = 60.0  # over which the most requests at once say how many replicas are wanted


@dataclass(frozen=True, slots=True)
class Answering:
    """A replica that requests can go to."""

    job_id: UUID
    attempt: int

    @property
    def folder(self) -> AttemptFolder:
        return settings.HOME.job(self.job_id).attempt(self.attempt)


@dataclass
class Desk:
    """One service in this process; its methods run on the event loop."""

    service: Service
    line: Line[Answering]
    traffic: Traffic = field(default_factory=Traffic)
    peak: int = 0  # requests at once, since ``peak_at``
    is_removed: bool = False
    _peak_at: float = 0.0
    _looked_at: float = float("-inf")
    _told_at: float = float("-inf")
    _replicas: tuple[Answering, ...] = ()
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _look: asyncio.Task[None] | None = None
    _telling: asyncio.Task[None] | None = None
    _untold: bool = False  # something was asked or answered since the row was written

    @property
    def is_cold(self) -> bool:
        return not self._replicas

    async def look(self) -> None:
        """Read which replicas answer, unless that was just done; a cold service gets its first replica here.

        Requests to a service that has replicas do not wait for it, unless what is known is old.
        """
        age_s = time.monotonic() - self._looked_at
        if age_s < (LOOK_COLD_EVERY_S if self.is_cold else LOOK_EVERY_S):
            return
        if self.is_cold or age_s > OLD_S:
            await self._look_now()
        elif self._look is None or self._look.done():
            self._look = asyncio.create_task(self._look_now())

    async def _look_now(self) -> None:
        asked = time.monotonic()
        async with self._looking:
            if self._looked_at >= asked:  # another request has just looked
                return
            self._replicas = await self._answering()
            self._looked_at = time.monotonic()
            self.line.parallel, self.line.most_waiting = self.service.parallel, self.service.most_waiting
            self.line.set_replicas(self._replicas)

    async def lose(self, replica: Answering) -> None:
        """A replica that takes no connection gets no further request until it answers again."""
        self._replicas = tuple(each for each in self._replicas if each != replica)
        self.line.set_replicas(self._replicas)
        await database_sync_to_async(controller.note_unready)(replica.job_id, replica.attempt)

    async def tell(self) -> None:
        """Tell the agent that there are requests; requests that wait for a first replica wait until it knows."""
        now = time.monotonic()
        if now - self._peak_at > PEAK_S:
            self.peak, self._peak_at = 0, now
        self.peak = max(self.peak, self.line.load)
        if self.is_cold and now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            await database_sync_to_async(self._write)()
        self._tell_in_time()

    def count(self, status: int, took_s: float) -> None:
        """Count an answer; the row has it a second later."""
        self.traffic.count(status, took_s)
        self._tell_in_time()

    def _tell_in_time(self) -> None:
        self._untold = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._keep_told())

    async def _keep_told(self) -> None:
        """Write the row each second for as long as there are requests: a long answer is no idleness."""
        while self._untold or self.line.load:
            await asyncio.sleep(TELL_EVERY_S)
            self._untold = False
            await database_sync_to_async(self._write)()

    async def _answering(self) -> tuple[Answering, ...]:
        """The replicas that answer; where none does, those that start are asked whether they are ready."""
        ready, starting = await database_sync_to_async(self._read)()
        if starting:
            ask = sync_to_async(health.ready_among, thread_sensitive=False, executor=_ASKING)
            if found := await ask([(each, self.service.health_path) for each in starting]):
                await database_sync_to_async(controller.note_ready)(found, timezone.now())
                ready, _ = await database_sync_to_async(self._read)()
        return tuple(Answering(each.job_id, each.ready_attempt) for each in ready)

    def _read(self) -> tuple[list[ServiceReplica], list[ServiceReplica]]:
        """The replicas that answer, and those to be asked because none does."""
        try:
            self.service.refresh_from_db()
        except Service.DoesNotExist:
            self.is_removed = True
            return [], []
        if self.service.state != ServiceState.ON:
            return [], []
        if ready := controller.ready_replicas(self.service):
            return ready, []
        if self.line.load and not controller.open_replicas(self.service):
            controller.begin_first(self.service)
        return [], controller.unready_replicas(self.service)

    def _write(self) -> None:
        wanted = -(-self.peak // self.service.parallel)
        Service.objects.filter(pk=self.service.pk).update(
            asked_at=timezone.now(), wanted=wanted, traffic=self.traffic.as_json()
        )


class Desks:
    """All services that this process was asked for, by name."""

    def __init__(self) -> None:
        self._desks: dict[str, Desk] = {}
        self._opened: dict[
            tuple[str, str], tuple[Desk, float]
        ] = {}  # by name and key, and when that was read

    async def of(self, name: str, key: str) -> Desk | None:
        """The desk of a service for somebody with this key; None where there is no such service or key."""
        known = self._opened.get((name, key))
        if known is not None and not known[0].is_removed and time.monotonic() - known[1] < KEY_KEPT_S:
            return known[0]
        self._opened.pop((name, key), None)
        service = await database_sync_to_async(_opened_by)(name, key)
        if service is None:
            return None
        desk = self._desks.get(name)
        if desk is None or desk.service.pk != service.pk:
            desk = self._desks[name] = Desk(service, Line(service.parallel, service.most_waiting))
        desk.service = service  # as it is now: it may have been stopped
        while len(self._opened) >= MOST_KEYS:
            self._opened.pop(next(iter(self._opened)))
        self._opened[name, key] = (desk, time.monotonic())
        return desk


def _opened_by(name: str, key: str) -> Service | None:
    found = ServiceKey.objects.filter(service__name=name, digest=keys.digest(key)).select_related(
        "service__owner"
    )
    row = found.first()
    return row.service if row is not None and row.service.owner.is_active else None
