"""One subscription a process to everything that is watched; all sockets share what it reads and encodes.

A message over Redis only wakes; the data comes from the database and the files.  Besides, every topic is
checked each second, so a lost wake-up, or Redis itself, costs a second and never data.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol

import redis.asyncio
from channels.db import database_sync_to_async
from django.conf import settings
from django.utils import timezone, translation

from dashboard.live import passes, problems
from dashboard.live.open_sockets import TOLD_EVERY_S, OpenSockets
from dashboard.live.topics import (
    DevicesSource,
    ListSource,
    LogSource,
    PointsSource,
    Source,
    StateSource,
    own_rows,
)
from dashboard.parts import rows
from orchestrator.live.readings import read_now
from orchestrator.live.wakeups import CHANNEL
from orchestrator.models import Device, Job
from orchestrator.people import accounts

logger = logging.getLogger(__name__)

STREAM = uuid.uuid4().hex  # new with each start: it voids the counters that readers hold
CHECK_EVERY_S = 1.0
RECHECK_EVERY_S = 10.0
REDIS_RETRY_S = 1.0
REDIS_ANSWERS_WITHIN_S = 1.5


class Reader(Protocol):
    """A connection: told that a topic has something new, it fetches the batch itself when it can send."""

    pass_: passes.Pass
    language: str

    def mark(self, source: Source) -> None: ...

    def expel(self) -> None:
        """The person behind it may no longer read what they could."""


class _Watched:
    """A source with its readers and when it was looked at."""

    def __init__(self, key: str, target: passes.Target, source: Source, language: str) -> None:
        self.key = key
        self.target = target
        self.language = language
        self.source = source
        self.readers: set[Reader] = set()
        self.woken = True
        self.is_filled = False
        self.checked_at = float("-inf")

    def is_due(self, now: float) -> bool:
        age_s = now - self.checked_at
        return age_s >= CHECK_EVERY_S or (self.woken and age_s >= self.source.interval_s)

    def due_in(self, now: float) -> float:
        wait_s = self.source.interval_s if self.woken else CHECK_EVERY_S
        return max(0.0, self.checked_at + wait_s - now)


class Feed:
    """Watches what is subscribed to; lives as long as there are readers."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        problems.redis_outage.since = None
        self._watched: dict[str, _Watched] = {}
        self._readers: set[Reader] = set()
        self._wake = asyncio.Event()
        self._standing_changed = asyncio.Event()
        self.sockets = OpenSockets(STREAM)
        self._tasks: list[asyncio.Task[None]] = []

    def join(self, reader: Reader) -> None:
        self._readers.add(reader)
        if not self._tasks:
            self._tasks = [
                self.loop.create_task(_forever(work), name=f"feed {work.__name__}")
                for work in (self._watch, self._listen, self._recheck, self._tell_sockets)
            ]

    async def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)
        for key in list(self._watched):
            self._drop(key, reader)
        if not self._readers:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def subscribe(self, reader: Reader, target: passes.Target) -> Source:
        """Watch a topic for a reader; its source is filled, and the reader marked, within a moment."""
        key = target.key_for(reader.pass_, reader.language)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(key, target, _source(target), reader.language)
        watched.readers.add(reader)
        if watched.is_filled:
            reader.mark(watched.source)
        else:
            self._wake.set()
        return watched.source

    def unsubscribe(self, reader: Reader, target: passes.Target) -> None:
        self._drop(target.key_for(reader.pass_, reader.language), reader)

    def wake(self, topic: str) -> None:
        """Look at a topic soon, for every audience that it has."""
        for watched in self._watched.values():
            if watched.target.topic == topic:
                watched.woken = True
                self._wake.set()

    def _drop(self, key: str, reader: Reader) -> None:
        watched = self._watched.get(key)
        if watched is not None:
            watched.readers.discard(reader)
            if not watched.readers:
                del self._watched[key]

    async def _watch(self) -> None:
        while True:
            now = self.loop.time()
            wait_s = min((watched.due_in(now) for watched in self._watched.values()), default=CHECK_EVERY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()
            now = self.loop.time()
            due = [watched for watched in self._watched.values() if watched.is_due(now)]
            if due:
                await self._look(due, now)
            else:
                await asyncio.sleep(0.02)  # woken for what is not due yet

    async def _look(self, due: Sequence[_Watched], now: float) -> None:
        unseen = [watched for watched in due if watched.checked_at == float("-inf")]
        for watched in due:
            # Cleared before reading: news that arrives while reading is read in the next round.
            watched.woken, watched.checked_at = False, now
        changed = await _refresh([watched for watched in due if watched.readers])
        # Who was first to ask holds a seq that the source could not yet be compared with.
        for watched in {id(watched): watched for watched in [*changed, *unseen]}.values():
            watched.is_filled = True
            for reader in list(watched.readers):
                reader.mark(watched.source)

    async def _listen(self) -> None:
        client = redis.asyncio.Redis.from_url(settings.ENVIRONMENT.redis_url, socket_connect_timeout=1)
        try:
            async with client, client.pubsub() as channel:
                await channel.subscribe(CHANNEL)
                async for message in _messages(channel):
                    if message["type"] == "subscribe":
                        problems.redis_outage.since = None
                        for watched in self._watched.values():
                            watched.woken = True  # read again: news may have been missed
                        self._wake.set()
                        self._standing_changed.set()
                    elif message["type"] == "message":
                        self._hear(message["data"].decode("utf-8", "replace").split(" ", 1)[0])
        except (redis.RedisError, OSError) as error:
            if problems.redis_outage.since is None:
                problems.redis_outage.since = time.time()
                logger.warning("Redis does not answer (%s); live views are checked each second.", error)
            await asyncio.sleep(REDIS_RETRY_S)

    async def _tell_sockets(self) -> None:
        await asyncio.sleep(TOLD_EVERY_S)
        await self.sockets.tell()

    def _hear(self, topic: str) -> None:
        if topic == accounts.TOPIC:
            self._standing_changed.set()
        else:
            self.wake(topic)

    async def _recheck(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECHECK_EVERY_S):
                await self._standing_changed.wait()
        self._standing_changed.clear()
        readers = list(self._readers)
        valid = await database_sync_to_async(passes.still_valid)([reader.pass_ for reader in readers])
        for reader, is_valid in zip(readers, valid, strict=True):
            if not is_valid or await self._has_lost(reader):
                reader.expel()

    async def _has_lost(self, reader: Reader) -> bool:
        """Whether a reader watches a job of another that they may no longer see; deleted jobs count as lost."""
        targets = [watched.target for watched in self._watched.values() if reader in watched.readers]
        jobs = {target.job_id for target in targets if target.job_id is not None}
        return bool(jobs) and await database_sync_to_async(passes.lost)(reader.pass_, jobs)


async def _messages(channel: redis.asyncio.client.PubSub) -> AsyncIterator[dict[str, Any]]:
    """All that comes in, the answers to our own pings too.

    Raises:
        redis.TimeoutError: it takes connections and answers nothing.
    """
    asked = False
    while True:
        message = await channel.get_message(timeout=REDIS_ANSWERS_WITHIN_S)
        if message is not None:
            asked = False
            yield message
        elif asked:
            raise redis.TimeoutError("it takes connections and answers nothing")
        else:
            asked = True
            await channel.ping()


async def _forever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` again whatever happens to it: a database that is away for a moment must not end the feed."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception("The live feed stumbled; it goes on.")
            await asyncio.sleep(CHECK_EVERY_S)


def _source(target: passes.Target) -> Source:
    # A reader who returns after all had left holds a seq of the old source; counters never go back.
    first = int(time.time() * 1000)
    match target.kind:
        case "devices":
            return DevicesSource(first)
        case "jobs" | "queue":
            return ListSource(target.topic, first)
        case "metrics":
            return PointsSource(target.topic, settings.HOME.job(target.job_id).metrics)
        case "log":
            folder = settings.HOME.job(target.job_id).attempt(target.attempt)
            return LogSource(target.topic, folder.log(target.rank))
        case _:
            return StateSource(target.topic, first)


async def _refresh(due: Sequence[_Watched]) -> list[_Watched]:
    """Read what the due topics show, once for each language; returns the topics that changed."""
    changed = []
    for language in sorted({watched.language for watched in due}):
        with translation.override(language):
            changed += await _refresh_in_one([watched for watched in due if watched.language == language])
    return changed


async def _refresh_in_one(due: Sequence[_Watched]) -> list[_Watched]:
    """Read what topics show in the active language, each thing once."""
    kinds = {watched.target.kind for watched in due}
    now = timezone.now()
    board = await database_sync_to_async(rows.read_board)(now) if kinds & {"jobs", "queue"} else []
    devices = await database_sync_to_async(_devices)() if "devices" in kinds else []
    wanted = {watched.target.job_id for watched in due if watched.target.kind in {"job", "metrics"}}
    jobs = await database_sync_to_async(_jobs)(wanted) if wanted else {}
    changed = []
    for watched in due:
        source, target = watched.source, watched.target
        match source:
            case DevicesSource():
                is_new = source.update(read_now(), devices)
            case ListSource() if target.kind == "queue":
                is_new = source.update([entry.public for entry in board])
            case ListSource():
                is_new = source.update(own_rows(board, watched.target.audience(watched.key)))
            case PointsSource():
                is_new = target.job_id in jobs and source.update(jobs[target.job_id][0])
            case LogSource():
                is_new = source.update(await asyncio.to_thread(_size, source))
            case StateSource() if target.kind == "health":
                is_new = source.update({"problems": await database_sync_to_async(problems.current)()})
            case StateSource():
                is_new = target.job_id in jobs and source.update(jobs[target.job_id][1])
            case _:
                raise TypeError(f"no way to refresh {watched.key}")
        if is_new:
            changed.append(watched)
    return changed


def _size(source: LogSource) -> int:
    try:
        return source.path.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _devices() -> list[Device]:
    return sorted(Device.objects.all(), key=lambda device: device.place)


def _jobs(wanted: set[Any]) -> dict[Any, tuple[int, rows.DetailRow]]:
    """Points stored and the head of the page, by job."""
    now = timezone.now()
    labels = rows.device_labels(wanted)
    found = Job.objects.filter(pk__in=wanted).select_related("owner", "pool")
    return {job.pk: (job.metric_seq, rows.detail_row(job, labels.get(job.pk, []), now)) for job in found}


_current: Feed | None = None


def current() -> Feed:
    """The feed of this process; a new event loop gets a new one."""
    global _current  # one a process is the point
    if _current is None or _current.loop is not asyncio.get_running_loop():
        _current = Feed()
    return _current
