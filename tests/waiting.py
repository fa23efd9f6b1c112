"""Waiting for events: long enough for a machine at load 30, and not longer than the event takes."""

import time
from collections.abc import Callable

# When nothing comes within this time, nothing will: it tells a hang, never a speed. Speeds are in benchmarks/.
PATIENCE_S = 300.0
# A question costs processors: a request to a server, a look at every process. Whoever waits asks a tenth of the time
# at most, so that those who work get the rest.
_PAUSES_FOR_QUESTION = 9.0
_LONGEST_PAUSE_S = 0.5


def patience_s(limit_s: float = 0.0) -> float:
    """A test's own limit where that is longer than everybody's; a shorter one would only measure the machine."""
    return max(limit_s, PATIENCE_S)


def pause_s(question_s: float, every_s: float) -> float:
    """How long to wait after a question that took ``question_s`` before it is asked again."""
    return max(every_s, min(_LONGEST_PAUSE_S, _PAUSES_FOR_QUESTION * question_s))


def wait_until(
    condition: Callable[[], object],
    limit_s: float = PATIENCE_S,
    message: Callable[[], str] = lambda: "",
    *,
    every_s: float = 0.01,
) -> None:
    """Return as soon as the condition holds; a failure says what ``message`` tells then."""
    deadline_s = time.monotonic() + patience_s(limit_s)
    while True:
        asked_s = time.monotonic()
        if condition():
            return
        answered_s = time.monotonic()
        assert answered_s < deadline_s, f"waited {patience_s(limit_s):.0f} s in vain\n{message()}"
        time.sleep(pause_s(answered_s - asked_s, every_s))
