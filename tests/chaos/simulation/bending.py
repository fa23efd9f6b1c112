"""Puts the real code into a world: its clock, its processes, its queue."""

import logging
import random
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.chaos.simulation.world import World


class Keeper:
    """Stands for the thread that copies checkpoints: an attempt made progress or not, as chance has it."""

    chance = random.Random(0)  # noqa: S311  # a history, not a secret

    def __init__(self, attempt: Any) -> None:
        self.has_saved = False

    def begin(self) -> None: ...

    def stop(self) -> None: ...

    def saved_since(self, *_: Any) -> bool:
        return False

    def finish(self, *, clean: bool, is_done: bool, run_s: float) -> bool | None:
        return self.chance.random() < 0.5


class AtOnce:
    """A thread that has run when it was started."""

    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
        self._run = lambda: target(*args)

    def start(self) -> None:
        self._run()

    def is_alive(self) -> bool:
        return False


class NoErrorOfOurs(logging.Handler):
    """The agent survives errors in its own code and tries again, for ever; a history must not."""

    def emit(self, record: logging.LogRecord) -> None:
        from django.db import DatabaseError

        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, DatabaseError):
            raise AssertionError(f"{record.getMessage()}: {error!r}") from error


@contextmanager
def bent(world: World) -> Iterator[None]:
    """The real code in this world."""
    from django.db import connections
    from django.utils import timezone

    from orchestrator.agent import attempts, sweeps
    from orchestrator.live import wakeups
    from orchestrator.nodes import runs
    from orchestrator.supervisor import liveness

    Keeper.chance = world.chance
    connection: Any = connections["default"]
    commit = connection._commit
    changes: list[tuple[Any, str, Any]] = [
        (time, "monotonic", lambda: world.elapsed_s),
        (time, "monotonic_ns", lambda: int(world.elapsed_s * 1e9)),
        (time, "time", lambda: world.now().timestamp()),
        (timezone, "now", world.now),
        (runs, "spawn", world.spawn),
        (liveness, "with_nonce", world.with_nonce),
        (liveness, "send_signal", world.send_signal),
        (liveness, "identify", world.identify),
        (liveness, "is_alive", lambda process: False),
        (liveness, "boot_id", lambda: world.boot),
        (wakeups, "_send_task", world.send),
        (wakeups, "publish", lambda topic, seq=None: None),
        (attempts, "CheckpointKeeper", Keeper),
        (sweeps, "threading", types.SimpleNamespace(Thread=AtOnce)),
        (sweeps, "connection", types.SimpleNamespace(close=lambda: None)),
        (connection, "_commit", lambda: world.on_commit(commit)),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        with connection.execute_wrapper(world.on_query):
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
