"""Send wake-ups to workers and live views from a thread, so that no request waits for Redis.

A wake-up may be lost: the database holds the truth, and the agent's sweep and the views' own checks find what
was missed. So nothing here raises, and the queue is bounded: it holds only the newest wake-up of each topic.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import ClassVar

import redis
from django.conf import settings
from django.db import transaction

logger = logging.getLogger(__name__)

CHANNEL = "berth:live"
MOST_WAITING = 10_000
PATIENCE_AT_EXIT_S = 1.0

AttemptKey = tuple[str, int]  # the id of its job and its number

_withheld: ContextVar[bool] = ContextVar("withheld", default=False)
_held_back: ContextVar[list[AttemptKey] | None] = ContextVar("held_back", default=None)


class _Sender:
    """The sending thread, one per process; a fork starts its own."""

    current: ClassVar["_Sender | None"] = None
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.waiting: dict[str, Callable[[], object]] = {}
        self.sending = False
        self.changed = threading.Condition()
        self.failing = False
        self.redis = redis.Redis.from_url(
            settings.ENVIRONMENT.redis_url, socket_timeout=1, socket_connect_timeout=1
        )
        threading.Thread(target=self._run, name="wakeups", daemon=True).start()

    @classmethod
    def get(cls) -> "_Sender":
        with cls.lock:
            if cls.current is None or cls.current.pid != os.getpid():
                cls.current = cls()
                atexit.register(cls.current.wait_until_idle, PATIENCE_AT_EXIT_S)  # for short commands
            return cls.current

    def put(self, key: str, send: Callable[[], object]) -> None:
        """Queue a wake-up; it replaces an unsent one with the same key."""
        with self.changed:
            if key in self.waiting or len(self.waiting) < MOST_WAITING:
                self.waiting[key] = send
                self.changed.notify_all()

    def wait_until_idle(self, timeout_s: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: not self.waiting and not self.sending, timeout_s)

    def _run(self) -> None:
        while True:
            with self.changed:
                self.sending = False
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.waiting)
                send = self.waiting.pop(next(iter(self.waiting)))
                self.sending = True
            self._send(send)

    def _send(self, send: Callable[[], object]) -> None:
        try:
            send()
            self.failing = False
        except Exception as error:  # noqa: BLE001  # the sweep covers any failure of the broker
            # Logged once per outage, not once per message.
            if not self.failing:
                self.failing = True
                logger.warning("Redis does not accept wake-ups (%s); the agent's sweep replaces them.", error)


def publish(topic: str, seq: int | None = None) -> None:
    """Announce news of ``topic`` up to ``seq`` to live views, after the current transaction."""

    def send() -> None:
        if _withheld.get():
            return
        sender = _Sender.get()
        sender.put(
            f"live {topic}", partial(sender.redis.publish, CHANNEL, f"{topic} {'' if seq is None else seq}")
        )

    transaction.on_commit(send)


def schedule(*, for_errands: bool = False) -> None:
    """Request a scheduling pass from a worker, after the current transaction.

    Args:
        for_errands: an open outbox row requests the pass, so one pass answers any number of these messages.
    """
    named = {"for_errands": True} if for_errands else {}
    transaction.on_commit(partial(_send_task, "orchestrator.agent.tasks.schedule", **named))


def launch(job_id: object, number: int) -> None:
    """Ask a worker to launch an attempt, after the current transaction."""
    transaction.on_commit(partial(_send_launch, str(job_id), number))


def _send_launch(job_id: str, number: int) -> None:
    held_back = _held_back.get()
    if held_back is None:
        _send_task("orchestrator.agent.tasks.launch", job_id, number)
        return
    if held_back:  # it was not the last one
        _send_task("orchestrator.agent.tasks.launch", *held_back.pop())
    held_back.append((job_id, number))


def prepare(environment: int) -> None:
    """Ask a worker to build an environment, after the current transaction."""
    transaction.on_commit(partial(_send_task, "orchestrator.agent.tasks.prepare", environment))


def fetch(number: int) -> None:
    """Ask a worker to fetch data, after the current transaction."""
    transaction.on_commit(partial(_send_task, "orchestrator.agent.tasks.fetch", number))


def advance(sweep: object) -> None:
    """Ask a worker to advance a sweep, after the current transaction."""
    transaction.on_commit(partial(_send_task, "orchestrator.agent.tasks.advance", str(sweep)))


def check_out(checkout: int) -> None:
    """Ask a worker to fetch the code of a checkout, after the current transaction."""
    transaction.on_commit(partial(_send_task, "orchestrator.agent.tasks.check_out", checkout))


def _send_task(name: str, *arguments: object, **named: object) -> None:
    if _withheld.get():
        return
    from orchestrator.live.broker import app  # late import: costs 60 ms, which most commands can skip

    _Sender.get().put(
        f"task {name} {arguments} {named}", partial(app.send_task, name, args=arguments, kwargs=named)
    )


@contextmanager
def last_launch_held_back(held_back: list[AttemptKey]) -> Iterator[None]:
    """Send the wake-ups for all launches of this context but the last one, which the caller does itself.

    Args:
        held_back: an empty list, which then holds this launch, if there was any.
    """
    token = _held_back.set(held_back)
    try:
        yield
    finally:
        _held_back.reset(token)


@contextmanager
def withheld() -> Iterator[None]:
    """Send no wake-ups in this context: Redis and its listeners have been stopped."""
    token = _withheld.set(True)
    try:
        yield
    finally:
        _withheld.reset(token)


def wait_until_sent(timeout_s: float = 2) -> None:
    """Wait briefly for queued wake-ups to be sent, before a command ends."""
    _Sender.get().wait_until_idle(timeout_s)
