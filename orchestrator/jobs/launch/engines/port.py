"""What an engine has to do, and what it is given."""

import socket
from collections.abc import Mapping
from typing import Protocol

from orchestrator.models import Attempt
from orchestrator.nodes.runs import Order
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.records import LARGEST_RECORD_BYTES, Record, parse_record


class Engine(Protocol):
    """Starts, asks and reads the supervisors of attempts; any call may come twice, late, or not at all."""

    def start(self, order: Order, secrets: Mapping[str, str]) -> None:
        """Start the supervisor of an attempt whose folder is prepared; nothing where it has one.

        Raises:
            NotStarted: only ``forestall`` proves that none will come.
            OSError: the attempt's folder cannot be used.
        """

    def stop(self, order: Order, *, reason: str, grace_s: float, saved: bool) -> bool:
        """Ask the supervisor to end its run; False where there is no folder yet to write the order into.

        Raises:
            OSError: the order could not be written.
        """

    def request_checkpoint(self, order: Order) -> bool:
        """Ask the ranks to save now; False where there is no folder to write the order into.

        Raises:
            OSError: the order could not be written.
        """

    def request_profile(self, order: Order) -> bool | None:
        """Ask the run to profile its next steps; False if no process of it can, None if the supervisor does not answer.

        Raises:
            OSError: the order could not be written.
        """

    def open_shell(self, order: Order) -> socket.socket:
        """Open a connection to an SSH server inside the run; waits for it, so never in an event loop.

        Raises:
            NoShell: the run lets nobody in, or its supervisor does not answer.
            OSError: the order could not be written.
        """

    def forestall(self, order: Order, record: Mapping[str, object]) -> bool:
        """Leave an exit record, so that no supervisor can start any more.

        False, and nothing is written, where the attempt has a supervisor, had one, or has an exit record of its own:
        ``state`` tells which.

        Raises:
            OSError: the record could not be written.
        """

    def state(self, order: Order) -> Liveness:
        """Judge whether the attempt lives; UNKNOWN where its node does not answer, never an error."""

    def is_starting(self, order: Order) -> bool:
        """Whether a supervisor of an attempt that NEVER_STARTED may still come by itself: its process is there, or ordered."""

    def end_leftovers(self, order: Order) -> int:
        """SIGKILL what a dead supervisor left behind; the number of processes. Only for an attempt that is DYING.

        Raises:
            OSError: the node does not answer; some may have ended.
        """

    def read(self, order: Order, name: str, offset: int, limit_bytes: int) -> bytes:
        """Read a file of the attempt's folder from a byte on.

        Empty at the file's end, without a file, and where the run put something else in its place.

        Args:
            name: the file's path in the folder, such as ``metrics.jsonl``.

        Raises:
            OSError: the node does not answer, which says nothing about the file.
        """


def read_whole(engine: Engine, order: Order, name: str) -> Record | None:
    """A record of the attempt; None if it is missing or not one of ours.

    Raises:
        OSError: the node does not answer.
    """
    return parse_record(engine.read(order, name, 0, LARGEST_RECORD_BYTES + 1))


def order_of(attempt: Attempt) -> Order:
    return Order(attempt.job_id, attempt.number, attempt.nonce)
