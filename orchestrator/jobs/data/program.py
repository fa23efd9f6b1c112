"""Runs the fetching program: in a sandbox, with the packages that its kind of address needs."""

import json
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from django.conf import settings

from orchestrator.jobs.data.causes import CannotFetch
from orchestrator.jobs.environments import building
from orchestrator.jobs.environments.declared import Declared
from orchestrator.jobs.environments.failures import CannotPrepare
from orchestrator.jobs.environments.lock import Locked
from orchestrator.jobs.environments.uv import NoTool
from orchestrator.jobs.launch import interpreters, isolation
from orchestrator.store.files.durable import write_durably
from orchestrator.store.layout import BuiltEnvironment
from orchestrator.supervisor.sandbox import bwrap

PROGRAM = "orchestrator.jobs.data.transfer"
# Fixed, so that a release reads the services as it was tested.  docs/decisions/data-is-fetched-by-a-program-apart.md
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "hf": ("huggingface_hub==2.4.0",),
    "s3": ("s3fs==2026.9.0",),
    "gs": ("gcsfs==2026.10.1",),
}
LONGEST_LINE = 100_000
_installing = threading.Lock()


def run(
    scheme: str,
    request: Mapping[str, Any],
    variables: Mapping[str, str],
    folder: Path,
    log: Path,
    hear: Callable[[Mapping[str, Any]], None],
) -> None:
    """Run the program to its end.

    Args:
        hear: called with each line of its news; what it raises ends the program.

    Raises:
        CannotFetch: it ended without having fetched everything.
        OSError: it cannot be started.
    """
    environment = _environment(scheme, log)
    with log.open("a", encoding="utf-8") as errors:
        process = subprocess.Popen(  # noqa: S603 -- our own program; the credentials go through its standard input
            _sandboxed([*_python(environment), "-m", PROGRAM], environment, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env=_variables(folder, variables),
        )
        with process:
            try:
                _converse(process, request, hear)
            finally:
                process.send_signal(signal.SIGKILL)  # has no effect on one that has ended


def _converse(
    process: "subprocess.Popen[bytes]", request: Mapping[str, Any], hear: Callable[[Mapping[str, Any]], None]
) -> None:
    assert process.stdin is not None  # noqa: S101 -- a pipe, as is the other
    assert process.stdout is not None  # noqa: S101
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
    except BrokenPipeError:
        pass  # it has ended already, and its end says why
    is_finished = False
    while line := process.stdout.readline(LONGEST_LINE):
        news = orjson.loads(line)
        hear(news)
        is_finished = is_finished or bool(news.get("finished"))
    if not is_finished:
        raise CannotFetch("network", "The fetching program was stopped.")


def _python(environment: BuiltEnvironment | None) -> list[str]:
    return [sys.executable if environment is None else str(environment.python), "-s"]


def _variables(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The program's environment: none of Berth's settings, and a home without credentials."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(folder / "home"),
        "PYTHONPATH": str(settings.BASE_DIR),
        "PYTHONDONTWRITEBYTECODE": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HF_HUB_DISABLE_XET": "1",  # its own network code would pass by the guard of the sockets
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # Its gRPC client would pass by the guard of the sockets, and waits a minute for services that speak HTTP alone.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "HF_HOME": str(folder / "home"),
        **variables,
    }


def _sandboxed(words: Sequence[str], environment: BuiltEnvironment | None, folder: Path) -> list[str]:
    level = isolation.level()
    if not level:
        return list(words)
    roots = [*interpreters.roots(sys.executable), str(settings.BASE_DIR)]
    if environment is not None:
        roots += [str(environment.root), str(settings.HOME.environments.bytecode)]
    launch = interpreters.trial(words[0], roots, level, work=folder)
    return bwrap.tool(launch, words, writable=[settings.HOME.fetched.root])


def _environment(scheme: str, log: Path) -> BuiltEnvironment | None:
    """The environment for a scheme, built at its first use; None where Berth's own Python is enough.

    Raises:
        CannotFetch: the packages cannot be installed.
    """
    if scheme not in PACKAGES:
        return None
    with _installing:
        record = settings.HOME.fetched.root / "tools" / f"{scheme}.json"
        known = json.loads(record.read_text()) if record.exists() else {}
        place = settings.HOME.environments.built(known.get("key", "none"))
        if known.get("packages") == list(PACKAGES[scheme]) and place.python.exists():
            place.root.touch()  # used now: what nobody uses is removed
            return place
        key = _build(scheme, log)
        record.parent.mkdir(parents=True, exist_ok=True)
        write_durably(record, json.dumps({"packages": PACKAGES[scheme], "key": key}).encode())
        return settings.HOME.environments.built(key)


def _build(scheme: str, log: Path) -> str:
    folder = settings.HOME.environments.work / f"data-{scheme}-{secrets.token_hex(4)}"
    for path in (folder, settings.HOME.environments.cache):
        path.mkdir(parents=True, exist_ok=True)

    def tell(packages: Sequence[Locked]) -> None:
        """Nobody waits for the list."""

    request = Declared("fetching data", lines=PACKAGES[scheme]).as_json()
    try:
        return building.build(request, "", folder, log, tell).key
    except (CannotPrepare, NoTool) as error:
        is_network = isinstance(error, CannotPrepare) and error.retriable
        raise CannotFetch("network" if is_network else "tool", str(error)) from None
    finally:
        building.clear(folder)
