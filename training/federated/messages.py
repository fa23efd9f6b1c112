"""Messages between the server of federated rounds and its sites: a kind, plain facts and bytes; nothing is unpickled."""

import json
from typing import Any, NamedTuple

_LENGTH_BYTES = 4


class Unreadable(ValueError):
    """Bytes that are no message."""


class Message(NamedTuple):
    """What one side tells the other."""

    kind: str
    facts: dict[str, Any]
    data: bytes = b""


def encode(message: Message) -> bytes:
    """Return the message as bytes."""
    head = json.dumps([message.kind, message.facts]).encode()
    return len(head).to_bytes(_LENGTH_BYTES, "big") + head + message.data


def decode(raw: bytes) -> Message:
    """Read a message.

    Raises:
        Unreadable: the bytes are no message.
    """
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
    try:
        kind, facts = json.loads(raw[_LENGTH_BYTES:end])
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable("the bytes are no message") from error
    if not isinstance(kind, str) or not isinstance(facts, dict):
        raise Unreadable("the bytes are no message")
    return Message(kind, facts, raw[end:])


def by_site(facts: object) -> dict[int, Any]:
    """Values by the number of a site, whose keys JSON has made texts.

    Raises:
        Unreadable: something else.
    """
    if not isinstance(facts, dict):
        raise Unreadable("values by site are missing")
    try:
        return {int(number): value for number, value in facts.items()}
    except (ValueError, TypeError) as error:
        raise Unreadable("a site has no number") from error
