"""The ways between the server of federated rounds and a site: a pipe in one job, or a folder that two jobs share."""

import os
import stat
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from training.federated.messages import Message, Unreadable, decode, encode

LOOK_EVERY_S = 0.01
SLOWEST_LOOK_S = 0.1  # of a side that waits for long
MOST_BYTES = 4 << 30  # of a message, where nobody knows the size of the model
_ENDING = ".message"


class Gone(Exception):
    """The other side takes no further messages; the text says why."""


class Channel(Protocol):
    """One side of the way between the server and a site."""

    def send(self, message: Message) -> None:
        """Raises: Gone."""

    def receive(self) -> Message | None:
        """The next message, None if there is none yet.  Raises: Gone, Unreadable."""

    def close(self) -> None: ...


def wait_for(channel: Channel) -> Message:
    """Wait for the next message.

    Raises:
        Gone: there will be none.
        Unreadable: the other side sent something else.
    """
    pause_s = LOOK_EVERY_S
    while (message := channel.receive()) is None:
        time.sleep(pause_s)
        pause_s = min(SLOWEST_LOOK_S, pause_s * 1.2)
    return message


class PipeChannel:
    """A channel between processes of one job."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, message: Message) -> None:
        try:
            self._pipe.send_bytes(encode(message))
        except OSError as error:
            raise Gone("it has vanished") from error

    def receive(self) -> Message | None:
        try:
            return decode(self._pipe.recv_bytes()) if self._pipe.poll() else None
        except (EOFError, OSError) as error:
            raise Gone("it has vanished") from error

    def close(self) -> None:
        self._pipe.close()


class FolderChannel:
    """A channel between two jobs: numbered files in two folders, each read and removed by the other side.

    Args:
        told: a file that appears when the other side's job has ended; Berth writes why into it.
        most_bytes: of one message; a longer one is not read.
    """

    def __init__(
        self, inbox: Path, outbox: Path, told: Path | None = None, most_bytes: int = MOST_BYTES
    ) -> None:
        self._most_bytes = most_bytes
        self._inbox, self._outbox, self._told = inbox, outbox, told
        for folder in (inbox, outbox):
            folder.mkdir(parents=True, exist_ok=True)
        # A restarted job continues after what it sent before and nobody has read yet.
        self._next = max((int(name.partition(".")[0]) for name in _waiting(outbox)), default=0) + 1

    def send(self, message: Message) -> None:
        part, path = self._outbox / ".part", self._outbox / f"{self._next:012d}{_ENDING}"
        try:
            part.write_bytes(encode(message))
            part.replace(path)
        except FileNotFoundError as error:
            raise Gone("its folder is gone") from error
        self._next += 1

    def receive(self) -> Message | None:
        waiting = _waiting(self._inbox)
        if not waiting:
            if self._told is not None and self._told.is_file():
                raise Gone(self._told.read_text().strip() or "its job has ended")
            return None
        path = self._inbox / waiting[0]
        try:
            raw = self._read(path)
            path.unlink()
        except OSError as error:
            raise Unreadable(f"a message cannot be read: {error.strerror}") from error
        return decode(raw)

    def _read(self, path: Path) -> bytes:
        """Read a file that the other side made: only a plain one, as others could keep a reader waiting."""
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise Unreadable("a message is no plain file")
            if about.st_size > self._most_bytes:
                raise Unreadable(f"a message has {about.st_size:,} bytes, of {self._most_bytes:,} at most")
            return file.read(self._most_bytes)

    def close(self) -> None:
        """Nothing is open between messages."""


def _waiting(folder: Path) -> list[str]:
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name.endswith(_ENDING) and name.removesuffix(_ENDING).isdigit())


def ways_of_site(exchange: Path, number: int) -> tuple[Path, Path]:
    """The folders of a site in the exchange of a federation: to the site, and from it."""
    place = exchange / "sites" / str(number)
    return place / "to", place / "from"
