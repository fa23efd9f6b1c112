"""Where the sites of federated rounds run: processes of this job, or jobs of their own."""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from training.federated.channels import MOST_BYTES, Channel, FolderChannel, PipeChannel, ways_of_site
from training.federated.site import Local, serve


class Running(Protocol):
    """What the server needs of a site's process."""

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...

    def kill(self) -> None: ...


class Sites(Protocol):
    """The sites of a training: ways to them, and how they end."""

    def open(self, local: Local) -> dict[int, Channel]:
        """Begin, and return a channel to each site."""

    def end(self, number: int) -> None:
        """End one site."""


Start = Callable[[int, Connection], Running]


@dataclass(slots=True)
class Processes:
    """Sites as processes of this job, or as whatever ``start`` starts."""

    start: Start | None = None
    _running: dict[int, tuple[Channel, Running]] = field(default_factory=dict)

    def open(self, local: Local) -> dict[int, Channel]:
        for number in range(local.sites):
            ours, theirs = multiprocessing.Pipe()
            channel = PipeChannel(ours)
            self._running[number] = channel, (self.start or _starter(local))(number, theirs)
        return {number: channel for number, (channel, _) in self._running.items()}

    def end(self, number: int) -> None:
        channel, process = self._running.pop(number)
        channel.close()
        process.join(2)
        if process.is_alive():
            process.kill()
            process.join(5)


def _starter(local: Local) -> Start:
    def start(number: int, pipe: Connection) -> Running:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=serve_pipe, args=(local, number, pipe), daemon=True)
        process.start()
        pipe.close()  # it is the site's alone, so its end is noticed
        return process

    return start


def serve_pipe(local: Local, number: int, pipe: Connection) -> None:
    """The entry of a site's process."""
    serve(local, number, PipeChannel(pipe))


@dataclass(frozen=True, slots=True)
class Jobs:
    """Sites as jobs of their own, which Berth begins and ends; the folder ``exchange`` is between them."""

    exchange: Path
    most_bytes: int = MOST_BYTES  # of a message that a site sends

    def open(self, local: Local) -> dict[int, Channel]:
        channels: dict[int, Channel] = {}
        for number in range(local.sites):
            to_site, from_site = ways_of_site(self.exchange, number)
            told = self.exchange / "told" / str(number)
            channels[number] = FolderChannel(from_site, to_site, told, self.most_bytes)
        return channels

    def end(self, number: int) -> None:
        """Its job ends by the message ``end``; Berth stops one that does not."""


def join(local: Local, number: int, exchange: Path) -> None:
    """Take part as one site, in a job of its own."""
    to_site, from_site = ways_of_site(exchange, number)
    serve(local, number, FolderChannel(to_site, from_site))
