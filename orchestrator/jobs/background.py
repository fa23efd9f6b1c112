"""Work for waiting jobs in threads of the worker or the agent: each piece once, however often it is asked for."""

import fcntl
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

logger = logging.getLogger(__name__)


class Background:
    """Runs pieces of one kind of work by their numbers, a few of them at once."""

    def __init__(
        self, name: str, work: Callable[[int], None], *, at_once: int, of_one: int | None = None
    ) -> None:
        """Make it without starting anything.

        Args:
            of_one: pieces of one person at once, so that the others get a turn; None: as many as ``at_once``.
        """
        self._name = name
        self._work = work
        self._turns = threading.BoundedSemaphore(at_once)
        most = at_once if of_one is None else of_one
        self._of_persons: dict[int | None, threading.BoundedSemaphore] = defaultdict(
            lambda: threading.BoundedSemaphore(most)
        )
        self._started: set[int] = set()
        self._starting = threading.Lock()

    def start(
        self, number: int, then: Callable[[int], None] | None = None, *, person: int | None = None
    ) -> bool:
        """Do a piece in a thread; False where one of this process is at it already.

        Args:
            then: called after the turn, which it does not hold up.
            person: whose piece it is; None: of nobody in particular.
        """
        with self._starting:
            if number in self._started:
                return False
            self._started.add(number)
            of_person = self._of_persons[person]
        run = threading.Thread(
            target=self._in_turn, args=(number, then, of_person), name=self._name, daemon=True
        )
        run.start()
        return True

    @property
    def is_busy(self) -> bool:
        """Whether a thread of this process is at work, or waits for its turn."""
        return bool(self._started)

    def _in_turn(
        self, number: int, then: Callable[[int], None] | None, of_person: threading.BoundedSemaphore
    ) -> None:
        try:
            with of_person, self._turns:
                self._work(number)
            if then is not None:
                then(number)
        except Exception:
            logger.exception("Preparing %s %s failed", self._name, number)
        finally:
            with self._starting:
                self._started.discard(number)
            connection.close()


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock that says a process is at work; it ends with the process.

    False where another process or thread holds it, unless the caller waits for its turn.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(fd)
