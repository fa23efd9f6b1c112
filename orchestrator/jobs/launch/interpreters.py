"""The Pythons that jobs run with: the folders that each needs, and whether it starts in the sandbox."""

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from orchestrator.exceptions import Unavailable
from orchestrator.jobs.launch import isolation
from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.sandbox import bwrap

ENTRY = settings.BASE_DIR / "training" / "entry.py"
STARTS_WITHIN_S = 60.0
# Prints the prefixes, and the folder of the shared library, which may be outside of them.
_PRINT_ROOTS = r"""
import json, os, sys
roots = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
with open("/proc/self/maps") as maps:
    paths = {line.split(None, 5)[5].strip() for line in maps if "/libpython" in line}
print(json.dumps([*roots, *map(os.path.dirname, paths)]))
"""


_PRINT_VERSIONS = r"""
import json, platform
from importlib import metadata
try:
    torch = metadata.version("torch")
except metadata.PackageNotFoundError:
    torch = None
print(json.dumps([platform.python_version(), torch]))
"""


# The folders of packages, in the order of the path, without a user's own.
_PRINT_SITES = r"""
import json, os, platform, site, sys
folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and os.path.isdir(path)]
print(json.dumps([platform.python_version(), folders]))
"""


@dataclass(frozen=True, slots=True)
class Sites:
    """Where a Python has its packages."""

    python: str
    version: str
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Versions:
    """What a Python says of itself."""

    python: str
    torch: str | None  # None: it has none


class DoesNotStart(Unavailable):
    """A Python does not start the way jobs start it; the sentence has its output."""

    code = "interpreter_does_not_start"


def versions(python: str) -> Versions:
    """Ask a Python for its version and torch's, once a process for each state of the file.

    Raises:
        DoesNotStart: with its output, and what to do.
    """
    return _told_versions(python, _changed_at(python))


@functools.lru_cache(maxsize=64)
def _told_versions(python: str, _changed_at: int) -> Versions:
    return Versions(*_ask(python, _PRINT_VERSIONS))


def sites(python: str) -> Sites:
    """Ask a Python where its packages are, once a process for each state of the file.

    Raises:
        DoesNotStart: with its output, and what to do.
    """
    return _told_sites(python, _changed_at(python))


@functools.lru_cache(maxsize=64)
def _told_sites(python: str, _changed_at: int) -> Sites:
    version, folders = _ask(python, _PRINT_SITES)
    return Sites(python, version, tuple(folders))


def _changed_at(python: str) -> int:
    try:
        return Path(python).stat().st_mtime_ns
    except OSError as error:
        raise DoesNotStart(f"{python} cannot be used: {error.strerror}.") from None


def roots(python: str) -> list[str]:
    """Return the folders that a Python says it needs, after a trial in the sandbox, once a process.

    Raises:
        DoesNotStart: with its output, and what to do.
    """
    return _tried_roots(python, _changed_at(python), isolation.level())


@functools.lru_cache(maxsize=64)
def _tried_roots(python: str, _changed_at: int, level: int) -> list[str]:
    found = list(dict.fromkeys(map(str, _ask(python, _PRINT_ROOTS))))
    launch = trial(python, found, level, work=settings.HOME.root)
    try:
        words = bwrap.try_interpreter(launch)
    except (OSError, subprocess.TimeoutExpired) as error:
        words = str(error)
    if words is not None:
        raise DoesNotStart(
            f"{python} starts on this server, but not in the sandbox of a job ({words}). Of the home of the user that "
            f"runs Berth, jobs see only the folders of this Python: {', '.join(found)}. "
            "Use a Python that is installed elsewhere, or whose libraries all lie in its own folder."
        )
    return found


def _ask(python: str, program: str) -> list[Any]:
    """The list that a short program prints, in the environment of a run, which has no ``LD_LIBRARY_PATH``."""
    try:
        answer = subprocess.run(  # noqa: S603 -- an interpreter that the operator named
            [python, "-I", "-c", program],
            capture_output=True,
            timeout=STARTS_WITHIN_S,
            check=False,
            cwd="/",
            env={"LANG": "C.UTF-8"},
        )
        found = json.loads(answer.stdout) if answer.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise DoesNotStart(f"{python} does not start: {error}.") from None
    if not isinstance(found, list):
        words = answer.stderr.decode(errors="replace").strip().splitlines()
        raise DoesNotStart(f"{python} does not start: {words[-1] if words else 'without a message'}.")
    return found


def trial(python: str, found: list[str], level: int, *, work: Path, read_only: Sequence[Path] = ()) -> Launch:
    """A launch record that names the interpreter and nothing to run."""
    return Launch(
        {
            "job_id": "trial",
            "number": 1,
            "nonce": "trial",
            "script": "trial",
            "ranks": 1,
            "python": python,
            "python_roots": found,
            "entry": str(ENTRY),
            "home": str(settings.HOME.root),
            "work": str(work),
            "checkpoints": str(work),
            "output": str(work),
            "read_only": [str(path) for path in read_only],
            "sandbox": {"level": level, "network": "host"},
        }
    )


def warning() -> str | None:
    """Explain why jobs cannot run with Berth's own Python, their default; None if they can."""
    try:
        roots(sys.executable)
    except DoesNotStart as error:
        return f"No job can run: {error}"
    return None
