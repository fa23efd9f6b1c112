"""Waiting for events: long enough for a machine at load 30, and not longer than the event takes."""

import time
from collections.abc import Callable

# When nothing comes within this time, nothing will: it tells a hang, never a speed. Speeds are in benchmarks/.
PATIENCE_S = 300.0


def patience_s(limit_s: float = 0.0) -> float:
    """A test's own limit where that is longer than everybody's; a shorter one would only measure the machine."""
    return max(limit_s, PATIENCE_S)


def wait_until(
    condition: Callable[[], object],
    limit_s: float = PATIENCE_S,
    message: Callable[[], str] = lambda: "",
    *,
    every_s: float = 0.01,
) -> None:
    """Return as soon as the condition holds; a failure says what ``message`` tells then."""
    deadline_s = time.monotonic() + patience_s(limit_s)
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {patience_s(limit_s):.0f} s in vain\n{message()}"
        time.sleep(every_s)
