"""The server's letters to its sites: a question to each, one answer of each, and which sites were lost."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from training.federated.channels import LOOK_EVERY_S, SLOWEST_LOOK_S, Channel, Gone
from training.federated.messages import Message, Unreadable
from training.federated.places import Sites
from training.federated.site import Local

LONGEST_WHY = 300  # characters of what a site says itself
MOST_WAITING = 100  # messages of one site that are read between two rounds


@dataclass(frozen=True, slots=True)
class Lost:
    """A site that takes no further part, and why."""

    site: int
    round: int
    why: str

    def __str__(self) -> str:
        return f"Site {self.site} is left out from round {self.round} on: {self.why}."


@dataclass(slots=True)
class Correspondence:
    """Channels to the sites, and the process of each that takes part.

    Args:
        patience_s: how long a site may take for each answer.
        log: keeps every message that came.
    """

    sites: Sites
    patience_s: float
    log: list[tuple[int, Message]] | None = None
    channels: dict[int, Channel] = field(default_factory=dict)
    runs: dict[int, str] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    round: int = 0
    _heard: set[tuple[int, str]] = field(default_factory=set)  # answers of the sum with this label
    _label: object = None

    def open(self, local: Local) -> None:
        """Wait for the first message of each site, as long as its job has not ended."""
        self.channels = self.sites.open(local)
        for number in list(self.channels):
            self.send(number, Message("call", {}))
        pause_s = LOOK_EVERY_S
        while waiting := set(self.channels) - set(self.runs):
            for number in waiting:
                message = self._look(number)
                if message is not None and message.kind == "hello":
                    self.runs[number] = str(message.facts.get("from"))
                elif message is not None and message.kind == "farewell":
                    self.lose(number, _why_of(message))
            time.sleep(pause_s)
            pause_s = min(SLOWEST_LOOK_S, pause_s * 1.1)

    def close(self) -> None:
        """Let every site end."""
        for number in list(self.channels):
            self.send(number, Message("end", {}))
            if self.channels.pop(number, None) is not None:
                self.sites.end(number)

    def ask(self, requests: Mapping[int, Message], kind: str) -> dict[int, Message]:
        """The answers to requests; sites that vanish, refuse or take too long are lost."""
        for number, request in requests.items():
            facts = {**request.facts, "to": self.runs[number]}
            self.send(number, Message(request.kind, facts, request.data))
        labels = {number: request.facts["label"] for number, request in requests.items()}
        if set(labels.values()) != {self._label}:
            self._label = next(iter(labels.values()), None)
            self._heard.clear()
        answers: dict[int, Message] = {}
        pending = {number for number in requests if number in self.runs}
        deadline_s, pause_s = time.monotonic() + self.patience_s, LOOK_EVERY_S
        while pending and time.monotonic() < deadline_s:
            heard = False
            for number in sorted(pending):
                message = self._look(number)
                if number not in self.runs:
                    pending.discard(number)
                if message is None:
                    continue
                heard = True
                if self._is_answer(number, message, kind, labels[number]):
                    answers[number] = message
                    pending.discard(number)
                elif number not in self.runs:
                    pending.discard(number)
            pause_s = LOOK_EVERY_S if heard else min(SLOWEST_LOOK_S, pause_s * 1.1)
            if not heard and pending:
                time.sleep(pause_s)
        for number in pending:
            self.lose(number, f"it did not answer within {self.patience_s:g} s")
        return answers

    def _is_answer(self, number: int, message: Message, kind: str, label: object) -> bool:
        """Whether a message answers the request; a site that says something else is lost."""
        if message.kind == "farewell":
            if message.facts.get("from") == self.runs.get(number):
                self._leave_out(number, _why_of(message))
            return False
        if message.kind == "hello":
            if message.facts.get("from") != self.runs.get(number):
                self._leave_out(number, "its job was started again; it takes part in the next round")
            return False
        if message.facts.get("from") != self.runs.get(number) or message.facts.get("label") != label:
            return False  # of an earlier process, or of a sum that was given up
        if (number, message.kind) in self._heard:
            return False  # it came twice: the line was cut after the first
        if message.kind == kind:
            self._heard.add((number, kind))
            return True
        why = str(message.facts.get("why", ""))[:LONGEST_WHY] if message.kind == "refused" else ""
        self.lose(number, why or "it sent something else than its update")
        return False

    def _look(self, number: int) -> Message | None:
        try:
            message = self.channels[number].receive()
        except Gone as error:
            self.lose(number, str(error))
            return None
        except Unreadable as error:
            self.lose(number, f"it sent something else than its update: {error}")
            return None
        if message is not None and self.log is not None:
            self.log.append((number, message))
        return message

    def send(self, number: int, message: Message) -> None:
        try:
            self.channels[number].send(message)
        except Gone as error:
            self.lose(number, str(error))

    def readmit(self) -> None:
        """Let sites take part again whose job was started again."""
        for number in set(self.channels) - set(self.runs):
            for _ in range(MOST_WAITING):
                if (message := self._look(number)) is None:
                    break
                if message.kind == "hello":
                    self.runs[number] = str(message.facts.get("from"))
                elif message.kind == "farewell" and message.facts.get("from") == self.runs.get(number):
                    self.runs.pop(number)

    def _leave_out(self, number: int, why: str) -> None:
        """Leave a site out of this round; it takes part again once it says hello."""
        self.runs.pop(number, None)
        self.lost.append(Lost(number, self.round, why))
        self.send(number, Message("call", {}))

    def lose(self, number: int, why: str) -> None:
        """End a site; nothing is read that it sends later."""
        self.runs.pop(number, None)
        channel = self.channels.pop(number, None)
        if channel is None:
            return
        self.lost.append(Lost(number, self.round, why))
        with suppress(Gone):
            channel.send(Message("end", {"why": why}))
        self.sites.end(number)


def _why_of(farewell: Message) -> str:
    return str(farewell.facts.get("why") or "")[:LONGEST_WHY] or "its job was stopped"
