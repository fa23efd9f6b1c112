"""The websocket's frames: JSON texts, encoded once for all who get them (docs/reference/api.md, WebSocket)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

TICK_S = 0.5
PING_S = 10.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What one subscriber gets now; afterwards it is at ``seq``, and ``more`` tells that more waits."""

    frames: tuple[str, ...]
    seq: int
    more: bool = False
    size_bytes: int = 0


def encode(frame: Mapping[str, Any]) -> str:
    """NaN and infinities become null, so a frame is JSON whatever a job reported (B47)."""
    return orjson.dumps(frame, option=orjson.OPT_NON_STR_KEYS).decode()


def frame(topic: str, kind: str, seq: int, data: Any, **more: Any) -> str:
    return encode({"topic": topic, "seq": seq, "type": kind, "data": data, **more})


def hello(stream: str) -> str:
    """``tick`` is the contract's word for ``tick_s``: seconds between two readings."""
    data = {"stream": stream, "now": time.time(), "tick": TICK_S, "tick_s": TICK_S}
    return encode({"type": "hello", "data": data})


def ping() -> str:
    return encode({"type": "ping", "data": {"now": time.time()}})


def lines(topic: str, start: int, shown: Mapping[str, Any] | None) -> str:
    """The answer to ``lines``, which has no seq of its own; None where the topic is no log that is followed."""
    return encode({"topic": topic, "type": "lines", "from": start, "data": shown})


def refused(topic: str, status: int) -> str:
    return encode({"topic": topic, "type": "error", "data": {"status": status}})


def gap(topic: str, start: int) -> str:
    """The reader holds a seq that is not there (any more); it reads over REST and subscribes again."""
    return encode({"topic": topic, "type": "gap", "from": start})
