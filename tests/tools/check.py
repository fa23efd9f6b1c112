"""What a change can have broken, within a minute: format, lint, layers, types, and the fast tests nearest to it.

python -m tests.tools.check [FILE...]     files that changed; by default those that git names
"""

import sys
import time
from collections.abc import Sequence

from tests.tools.choice import changed_files, files_for
from tests.tools.parts import Part, say
from tests.tools.suite import FORMAT, IMPORTS, LINT, LOGS, MIGRATIONS, TYPES, run

TESTS_WITHIN_S = 45.0  # then none starts; the one that runs ends


def tests_within(files: Sequence[str], stop_at: float, name: str) -> Part:
    """The fast tests of some files, as many as start in time."""
    options = ("-m", "not slow and not gpu", "-q", "-p", "tests.tools.budget", "--stop-at", stop_at)
    return Part(name, (sys.executable, "-m", "pytest", *options, *files))


def lanes(tests: Sequence[str], stop_at: float) -> list[list[Part]]:
    """Checks on one core, then half of the tests; the other half on the other core."""
    halves = [half for half in (tests[::2], tests[1::2]) if half]
    parts = [tests_within(half, stop_at, f"tests-{number}") for number, half in enumerate(halves, start=1)]
    return [[LINT, FORMAT, IMPORTS, TYPES, MIGRATIONS, *parts[1:]], parts[:1]]


def main() -> int:
    stop_at = time.time() + TESTS_WITHIN_S
    files = sys.argv[1:] or changed_files()
    tests = files_for(files)
    say(f"berth: {len(files)} changed files, {len(tests)} test files")
    LOGS.mkdir(parents=True, exist_ok=True)
    return run(lanes(tests, stop_at))


if __name__ == "__main__":
    sys.exit(main())
