"""Transactions that the database undid for the sake of another one are run again (F45)."""

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
    """``act`` is one whole transaction: repeat it up to three times, after a pause that doubles and varies.

    Inside another transaction it is not repeated: that one has to be.
    """

    @functools.wraps(act)
    def repeat(*args: P.args, **kwargs: P.kwargs) -> R:
        for number in range(RETRIES):
            try:
                return act(*args, **kwargs)
            except OperationalError as error:
                if connection.in_atomic_block or not was_undone(error):
                    raise
                logger.info("The database undid %s; again: %s", act.__qualname__, error)
            # Two that met once would meet again if both waited equally long.
            sleep(FIRST_PAUSE_S * 2**number * random.uniform(0.5, 1.5))  # noqa: S311  # jitter, not a secret
        return act(*args, **kwargs)

    return repeat


def was_undone(error: OperationalError) -> bool:
    """Whether nothing of the transaction is left, and running it again may go well."""
    return getattr(error.__cause__, "sqlstate", None) in _UNDONE
