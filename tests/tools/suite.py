"""All checks and tests, beside each other.

python -m tests.tools.suite          what `make test` runs
python -m tests.tools.suite --ci     on PostgreSQL and on the oldest Python, too
"""

import argparse
import compileall
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.tools import rewritten
from tests.tools.parts import Lanes, Part

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LOGS = ROOT / "build" / "tests"
TYPED = (
    "berth",
    "orchestrator",
    "dashboard",
    "training",
    "tests",
    "benchmarks",
    "examples",
    "deploy",
    "make.py",
)
LINT = Part("lint", (BIN / "ruff", "check", "."))
FORMAT = Part("format", (BIN / "ruff", "format", "--check", "."))
IMPORTS = Part("imports", (BIN / "lint-imports",))
MIGRATIONS = Part("migrations", (sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"))
TYPES = Part("types", (BIN / "mypy", *TYPED))
# One more than cores, for tests that wait for an event. More would make the many ranks of a training, which wait for
# each other with busy loops, cost the other tests their processors.
WORKERS = min(8, 1 + (os.cpu_count() or 2))
CHOSEN = ("-m", "not gpu", "-n", str(WORKERS), "--dist", "loadfile", "-q")
ALL_TESTS = Part("tests", (sys.executable, "-m", "pytest", *CHOSEN))
ALL_TESTS_CI = Part("tests", (sys.executable, "-m", "tests.tools.attempts", "tests", *CHOSEN))
POSTGRESQL = Part("postgresql", (sys.executable, "-m", "tests.postgresql"))


def oldest_python(user: str | None) -> Part:
    """What depends on the interpreter, on the oldest Python of this machine."""
    options = ("--only", "oldest", "--parts", *(("--user", user) if user else ()))
    return Part("pythons", ("/usr/bin/python3", "-m", "tests.pythons", *options))


def lanes(*, ci: bool, user: str | None = None) -> list[list[Part]]:
    """The tests, and beside them everything else in order of its answer."""
    beside = [LINT, FORMAT, IMPORTS, MIGRATIONS, TYPES]
    if ci:
        return [[ALL_TESTS_CI], [*beside, oldest_python(user), POSTGRESQL]]
    return [[ALL_TESTS], beside]


def run(lanes: Sequence[Sequence[Part]]) -> int:
    """Run the lanes; a request to stop ends every part."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Where it is set, each process would compile the packages again that it imports: 2.5 s of a processor for Django.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compile_sources()
    return Lanes(LOGS, ROOT).run(lanes)


def compile_sources() -> None:
    """Compile Berth and rewrite its tests once, before the first processes of servers and workers all do so."""
    for name in TYPED:
        if (ROOT / name).is_dir():
            compileall.compile_dir(ROOT / name, quiet=1, workers=0)
    rewritten.keep_all(ROOT / "tests")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ci", action="store_true", help="on PostgreSQL and on the oldest Python, too")
    parser.add_argument("--user", help="ordinary user for root's run on the oldest Python")
    chosen = parser.parse_args()
    return run(lanes(ci=chosen.ci, user=chosen.user))


if __name__ == "__main__":
    sys.exit(main())
