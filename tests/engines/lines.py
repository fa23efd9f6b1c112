"""A line to an engine on which calls are lost, come late and come twice."""

import errno
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any, TypeVar

from orchestrator.jobs.launch.engines import Engine, NotStarted, Order
from orchestrator.nodes.port import Port
from orchestrator.supervisor.liveness import Liveness

Answer = TypeVar("Answer")


class Faults:
    """Treats each kind of call in turn as lost, late, unanswered, doubled and sound.

    A late call is carried out just before the next call of any kind, long after its caller was told that nobody
    answers.
    """

    def __init__(self) -> None:
        self._late: list[Callable[[], object]] = []
        self._faults: dict[str, Iterator[str]] = defaultdict(
            lambda: cycle(("lost", "late", "unanswered", "doubled", "sound"))
        )

    def send(self, kind: str, call: Callable[[], Answer]) -> Answer:
        late, self._late = self._late, []
        for each in late:
            _drop(each())
        match next(self._faults[kind]):
            case "lost":
                raise _no_answer(kind)
            case "late":
                self._late.append(call)
                raise _no_answer(kind)
            case "unanswered":
                _drop(call())
                raise _no_answer(kind)
            case "doubled":
                _drop(call())
        return call()


class BadPort:
    """``Port`` behind a line with faults."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._line = Faults()

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self._line.send(name, lambda: getattr(self._port, name)(*given))


class BadLine:
    """``Engine`` behind a line with faults."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._send = Faults().send

    def start(self, order: Order, secrets: Mapping[str, str]) -> None:
        try:
            self._send("start", lambda: self.engine.start(order, secrets))
        except TimeoutError as error:
            raise NotStarted(str(error)) from error

    def stop(self, order: Order, *, reason: str, grace_s: float, saved: bool) -> bool:
        return self._send(
            "stop", lambda: self.engine.stop(order, reason=reason, grace_s=grace_s, saved=saved)
        )

    def request_checkpoint(self, order: Order) -> bool:
        return self._send("checkpoint", lambda: self.engine.request_checkpoint(order))

    def request_profile(self, order: Order) -> bool | None:
        return self._send("profile", lambda: self.engine.request_profile(order))

    def open_shell(self, order: Order) -> socket.socket:
        return self._send("shell", lambda: self.engine.open_shell(order))

    def forestall(self, order: Order, record: Mapping[str, object]) -> bool:
        return self._send("forestall", lambda: self.engine.forestall(order, record))

    def state(self, order: Order) -> Liveness:
        try:
            return self._send("state", lambda: self.engine.state(order))
        except TimeoutError:
            return Liveness.UNKNOWN

    def is_starting(self, order: Order) -> bool:
        return self._send("is_starting", lambda: self.engine.is_starting(order))

    def end_leftovers(self, order: Order) -> int:
        return self._send("end_leftovers", lambda: self.engine.end_leftovers(order))

    def read(self, order: Order, name: str, offset: int, limit_bytes: int) -> bytes:
        return self._send("read", lambda: self.engine.read(order, name, offset, limit_bytes))


def _drop(answer: object) -> None:
    """Nobody gets this answer."""
    if isinstance(answer, socket.socket):
        answer.close()


def _no_answer(kind: str) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"nobody answers the call {kind}")
