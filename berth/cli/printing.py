"""Plain output: sentences for people, JSON for programs, others' text made safe for a terminal."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from berth.shared import words

if TYPE_CHECKING:  # late import: costs 60 ms, and `berth --help` does not need it
    from berth.client import BerthError

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Whole escape sequences first (of a window title, the text in it too), then every control character left.
_UNSAFE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b\[[0-9;:?<=>!]*[ -/]*[@-~]"
    r"|\x1b.?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def remark(text: str) -> None:
    """Print a line for people, not for a pipe."""
    sys.stdout.flush()  # keeps the order of both streams
    sys.stderr.write(f"{text}\n")


def show_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def show_json_line(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def show_error(error: "BerthError", *, as_json: bool) -> None:
    """Print an error with the messages of its fields, as JSON if the command prints JSON."""
    if as_json:
        body = {"error": str(error), "status": error.status, "code": error.code, "fields": error.fields}
        sys.stderr.write(json.dumps(body, ensure_ascii=False) + "\n")
        return
    remark(f"berth: {safe(str(error))}")
    for name, messages in error.fields.items():
        for message in messages:
            if message not in str(error):
                remark(f"  {safe(name)}: {safe(message)}")


def in_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def safe(text: str, *, colours: bool = False) -> str:
    """Remove everything that could control the terminal; ``colours`` keeps colours and bold type."""
    return _UNSAFE.sub(lambda hit: hit[0] if colours and COLOUR.fullmatch(hit[0]) else "", text)


def write_log(text: str) -> None:
    """Print a piece of a log: made safe for a terminal, unchanged into a pipe or file."""
    sys.stdout.write(safe(text, colours=in_colour()) if sys.stdout.isatty() else text)
    sys.stdout.flush()


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A line on a terminal that says how much was sent; nothing elsewhere, and nothing where nothing is sent."""
    shown = False

    def tell(done_bytes: int, total_bytes: int) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            shown = True
            sys.stderr.write(f"\r{words.size(done_bytes)} of {words.size(total_bytes)} sent\x1b[K")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write("\n")
