"""Runs pytest, and what failed a second time, alone, once nothing else runs beside it.

python -m tests.tools.attempts NAME [pytest's arguments]     NAME: of this run, for what it remembers

A test with real processes that fails once in thousands of runs on a busy machine should be told, and should not stop
everybody else's work. One that fails alone, too, is a fault, and so is more than a handful of them. See
docs/decisions/failed-tests-run-again-alone.md.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_AGAIN = 3  # failed tests; more are no accident
SOME_FAILED = 1  # pytest's exit status


def failed_tests(cache: Path) -> list[str]:
    """What pytest remembers as failed, by node id; nothing where it came to no end."""
    try:
        return sorted(json.loads((cache / "v" / "cache" / "lastfailed").read_text()))
    except FileNotFoundError:
        return []


def run(arguments: Sequence[str], cache: Path, *, root: Path = ROOT) -> int:
    """The exit status of pytest, after a second attempt at most."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]
    status = subprocess.run([*command, "--cache-clear", *arguments], cwd=root, check=False).returncode
    failed = failed_tests(cache)
    if status != SOME_FAILED or not 0 < len(failed) <= MOST_AGAIN:
        return status
    say(f"Running again, alone: {', '.join(failed)}")
    again = [*command, "--last-failed", "--last-failed-no-failures=none", *without_workers(arguments)]
    status = subprocess.run(again, cwd=root, check=False).returncode
    if status == 0:
        say(f"FAILED AT FIRST, PASSED ALONE: {', '.join(failed)}")
    return status


def without_workers(arguments: Sequence[str]) -> list[str]:
    """Pytest's arguments less those of pytest-xdist."""
    left, rest = [], iter(arguments)
    for argument in rest:
        if argument in ("-n", "--dist"):
            next(rest, None)
        else:
            left.append(argument)
    return left


def say(text: str) -> None:
    sys.stdout.write(f"\n{text}\n")
    sys.stdout.flush()


def main() -> int:
    name, *arguments = sys.argv[1:]
    return run(arguments, ROOT / "build" / "tests" / f"cache-{name}")


if __name__ == "__main__":
    sys.exit(main())
