"""The Pythons that jobs run with: what each needs to be seen, and whether it starts in the sandbox."""

import functools
import json
import subprocess
import sys
from pathlib import Path

from django.conf import settings

from orchestrator.exceptions import Unavailable
from orchestrator.jobs.launch import isolation
from orchestrator.supervisor import sandbox
from orchestrator.supervisor.launch import Launch

ENTRY = settings.BASE_DIR / "training" / "entry.py"
STARTS_WITHIN_S = 60.0
# Prefixes, and the folder of the shared library if there is one: it need not be in any of them.
_TELLS = r"""
import json, os, sys
roots = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
with open("/proc/self/maps") as maps:
    paths = {line.split(None, 5)[5].strip() for line in maps if "/libpython" in line}
print(json.dumps([*roots, *map(os.path.dirname, paths)]))
"""


class DoesNotStart(Unavailable):
    """A Python cannot be started the way jobs start it; the sentence says what it said."""

    code = "interpreter_does_not_start"


def roots(python: str) -> list[str]:
    """The folders that this Python needs, by its own words; tried in the sandbox once a process.

    Raises:
        DoesNotStart: with what it said, and what to do.
    """
    try:
        changed_at = Path(python).stat().st_mtime_ns
    except OSError as error:
        raise DoesNotStart(f"{python} cannot be used: {error.strerror}.") from None
    return _tried_roots(python, changed_at, isolation.level())


@functools.lru_cache(maxsize=64)
def _tried_roots(python: str, _changed_at: int, level: int) -> list[str]:
    found = _ask(python)
    launch = _trial(python, found, level)
    try:
        words = sandbox.try_interpreter(launch)
    except (OSError, subprocess.TimeoutExpired) as error:
        words = str(error)
    if words is not None:
        raise DoesNotStart(
            f"{python} starts on this server, but not in the sandbox of a job ({words}). Of the home of the user that "
            f"runs Berth, jobs see only the folders of this Python: {', '.join(found)}. "
            "Use a Python that is installed elsewhere, or whose libraries all lie in its own folder."
        )
    return found


def _ask(python: str) -> list[str]:
    """In the environment of a run, which holds no ``LD_LIBRARY_PATH``."""
    try:
        answer = subprocess.run(  # noqa: S603 -- an interpreter that the operator named
            [python, "-I", "-c", _TELLS],
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
        raise DoesNotStart(f"{python} does not start: {words[-1] if words else 'it said nothing'}.")
    return list(dict.fromkeys(map(str, found)))


def _trial(python: str, found: list[str], level: int) -> Launch:
    """A launch that only says where the interpreter lies."""
    home = str(settings.HOME.root)
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
            "home": home,
            "work": home,
            "checkpoints": home,
            "output": home,
            "sandbox": {"level": level, "network": "host"},
        }
    )


def warning() -> str | None:
    """A sentence if jobs cannot run with Berth's own Python, which they get unless they name another."""
    try:
        roots(sys.executable)
    except DoesNotStart as error:
        return f"No job can run: {error}"
    return None
