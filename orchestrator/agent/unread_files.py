"""Files of a run whose bytes cannot be read: tried for a while, then given up and told."""

import errno
import logging
import os
import time

logger = logging.getLogger(__name__)

TRY_FOR_S = 60.0  # a server of files that restarts, or fails over to another, is back by then
# What a disk or a server of files answers for bytes that it has not got. A full disk and a server that does not answer
# have other errors, and get better.
BROKEN = frozenset({errno.EIO, errno.ESTALE, errno.EINVAL, errno.ENXIO, errno.EBADMSG, errno.EUCLEAN})


class UnreadFiles:
    """Counts how long reading fails, by file."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}  # monotonic
        self._given_up: dict[str, str] = {}

    def worked(self, name: str) -> None:
        self._since_s.pop(name, None)

    def failed(self, name: str, error: OSError, *, at_end: bool) -> bool:
        """Whether to give a file up; at the end of a run nothing is worth the wait."""
        now_s = time.monotonic()
        if name not in self._since_s:
            logger.warning("%s cannot be read: %s", name, error)
        if now_s - self._since_s.setdefault(name, now_s) < TRY_FOR_S and not at_end:
            return False
        self._given_up[name] = reason_of(error)
        return True

    def take_given_up(self) -> dict[str, str]:
        """Files that were given up since the last call, and why."""
        given_up, self._given_up = self._given_up, {}
        return given_up


def reason_of(error: OSError) -> str:
    """The system's words for an error, without a path of the server."""
    return os.strerror(error.errno) if error.errno else str(error)
