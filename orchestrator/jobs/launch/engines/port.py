"""What an engine has to do, and what it is given."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

from orchestrator.models import Attempt


class Order(NamedTuple):
    """One attempt on one node; the same order twice is one run."""

    job: UUID
    attempt: int
    nonce: str


class NotStarted(Exception):
    """The supervisor did not show itself in time; it may still come."""


class Engine(Protocol):
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

    def forestall(self, order: Order, record: Mapping[str, object]) -> bool:
        """Leave an exit record, so that no supervisor can start any more; False where there is one."""


def order_of(attempt: Attempt) -> Order:
    return Order(attempt.job_id, attempt.number, attempt.nonce)
