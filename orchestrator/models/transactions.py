"""Retries of transactions that the database rolled back because of another one."""

import functools
import logging
import random
from collections.abc import Callable
from time import sleep
from typing import ParamSpec, TypeVar

from django.db import OperationalError, connection

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

RETRIES = 3
FIRST_PAUSE_S = 0.02
# PostgreSQL, appendix A: serialization_failure, deadlock_detected.  SQLite has one writer, which waits instead.
_UNDONE = frozenset({"40001", "40P01"})


def again_when_undone(act: Callable[P, R]) -> Callable[P, R]:
    """Retry a function that is one whole transaction, up to three times, after a pause that doubles and varies.

    Inside another transaction it is not retried: the outer one has to be.
    """

    @functools.wraps(act)
    def repeat(*args: P.args, **kwargs: P.kwargs) -> R:
        for number in range(RETRIES):
            try:
                return act(*args, **kwargs)
            except OperationalError as error:
                if connection.in_atomic_block or not was_undone(error):
                    raise
                logger.info("The database rolled back %s; retrying: %s", act.__qualname__, error)
            # Two transactions that collided would collide again after equal pauses.
            sleep(FIRST_PAUSE_S * 2**number * random.uniform(0.5, 1.5))  # noqa: S311  # jitter, not a secret
        return act(*args, **kwargs)

    return repeat


def was_undone(error: OperationalError) -> bool:
    """Whether the transaction left no trace, so that a retry may succeed."""
    return getattr(error.__cause__, "sqlstate", None) in _UNDONE
