"""What a system that lends devices has to do, and what it is given."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from orchestrator.exceptions import Unavailable


class Refused(Unavailable):
    """The system will not lend what was asked for; the sentence is its own."""

    code = "refused"


class NoAnswer(Unavailable):
    """The system does not answer, which says nothing about what it lent."""

    code = "no_answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotRequest:
    """One allocation on one server, and what joins from it."""

    tag: str  # found again by it, if the answer to the request is lost
    name: str  # of the server that joins
    head: str  # address at which it joins
    token: str
    devices: str  # as BERTH_DEVICES has it
    gpus: int
    cpus: int
    longest_s: int


class GrantState(StrEnum):
    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


class Grant(NamedTuple):
    """What the system says of a request."""

    id: str
    tag: str
    state: GrantState
    reason: str = ""  # in the words of the system
    expected_at: float | None = None  # its estimate of the start; seconds since 1970, as all times here
    held_at: float | None = None
    until: float | None = None
    where: str = ""
    is_proof: bool = True  # ended: nothing of it can run any more; False: a server there does not answer


class LendingEngine(Protocol):
    """Asks a system for allocations; any call may come twice."""

    def request(self, wish: PilotRequest) -> str:
        """Ask for an allocation; its number or name.

        Raises:
            Refused: the system will not; asking again changes nothing until somebody changes the pool.
            NoAnswer: it may or may not have been asked; ``grants`` tells by the tag.
        """

    def grants(self, tags: Collection[str]) -> Mapping[str, Grant]:
        """What became of requests, by tag; one that the system does not know is not among them.

        Raises:
            NoAnswer: nothing is known.
        """

    def release(self, grant: str) -> None:
        """Give an allocation back, or withdraw a request that still waits.

        Raises:
            NoAnswer: it may still be held.
        """
