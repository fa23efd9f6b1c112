"""Asks the Python of an image what it has; it is a stranger's program, and so is its answer."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.jobs.launch import isolation
from orchestrator.jobs.launch.images import USUAL_PATH
from orchestrator.supervisor.linux.processes import identify
from orchestrator.supervisor.ranks.child import hold_processes
from orchestrator.supervisor.sandbox import bwrap, seccomp
from orchestrator.supervisor.sandbox.image import find_program

LARGEST_ANSWER_BYTES = 4 * 1024**2
MOST_PACKAGES = 5_000
_LONGEST_TEXT = 200
_STARTS_WITHIN_S = 120.0
_MOST_CPU_S = 60
_MOST_MEMORY_BYTES = 2 * 1024**3  # of each process
_MOST_FILES_BYTES = 64 * 1024**2  # of each folder in memory
_MOST_PROCESSES = 32
_PYTHONS = ("python3", "python")
_VERSION = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}", re.ASCII)
_PRINT_PACKAGES = r"""
import json, sys
from importlib import metadata
found = {each.metadata["Name"]: each.version for each in metadata.distributions()}
print(json.dumps([".".join(map(str, sys.version_info[:3])), {name: found[name] for name in found if name}]))
"""
# Limits hold for all that is started from here; a thread of ours cannot set them between fork and exec.
_LIMITED = f"""
import os, resource, signal, sys
for number in (signal.SIGXFSZ, signal.SIGPIPE):  # which Python ignores, and exec keeps that
    signal.signal(number, signal.SIG_DFL)
for limit, most in (
    (resource.RLIMIT_FSIZE, {LARGEST_ANSWER_BYTES}),
    (resource.RLIMIT_AS, {_MOST_MEMORY_BYTES}),
    (resource.RLIMIT_CPU, {_MOST_CPU_S}),
    (resource.RLIMIT_CORE, 0),
):
    hard = resource.getrlimit(limit)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (most, most))
os.execv(sys.argv[1], sys.argv[1:])
"""


def ask_python(
    root: Path, env: Mapping[str, str], folder: Path, log: Path
) -> tuple[str, str, dict[str, str]]:
    """The path, version and packages of an image's own Python, empty without one that starts.

    Args:
        folder: for what it says.
        log: gets a line where it does not start.
    """
    path = env.get("PATH") or USUAL_PATH
    python = next((found for name in _PYTHONS if (found := find_program(root, name, path))), None)
    if python is None:
        return "", "", {}
    said, errors = folder / "said", folder / "errors"
    try:
        failed = _run(root, {"LANG": "C.UTF-8", **env}, [python, "-c", _PRINT_PACKAGES], said, errors)
        version, packages = ("", {}) if failed else read_answer(_head(said, LARGEST_ANSWER_BYTES))
        why = failed or "its answer is none of Python's"
    except (OSError, ValueError) as error:
        version, packages, why = "", {}, str(error)
    finally:
        for each in (said, errors):
            each.unlink(missing_ok=True)
    if not version:
        with log.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{python} of the image does not start: {why}\n")
        return "", "", {}
    return python, version, packages


def read_answer(data: bytes) -> tuple[str, dict[str, str]]:
    """The version and packages in an answer; no version where the answer cannot be read.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        found: Any = json.loads(data)
    except RecursionError:
        found = None
    if not (isinstance(found, list) and len(found) == 2):
        return "", {}
    version, rows = found
    fits = (
        (isinstance(version, str) and _VERSION.fullmatch(version) is not None)
        and (isinstance(rows, dict) and len(rows) <= MOST_PACKAGES)
        and all(isinstance(each, str) for each in rows.values())
    )
    if not fits:
        return "", {}
    return version, {_storable(name).lower(): _storable(each) for name, each in rows.items() if name}


def _storable(text: str) -> str:
    """As every database can store it."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()[:_LONGEST_TEXT]


def _run(root: Path, env: Mapping[str, str], words: Sequence[str], said: Path, errors: Path) -> str:
    """Run a program of the image within its limits; why it failed, empty if it did not.

    Raises:
        OSError: the sandbox cannot be started.
    """
    info, tell = os.pipe()
    wait, go = os.pipe()
    filter_fd = seccomp.open_filter(isolation.level())
    own = [tell, wait, *([] if filter_fd is None else [filter_fd])]
    try:
        command = bwrap.in_image(
            *(root, env, words),
            memory_bytes=_MOST_FILES_BYTES,
            info_fd=tell,
            wait_fd=wait,
            filter_fd=filter_fd,
        )
        with said.open("wb") as output, errors.open("wb") as error_output:
            process = subprocess.Popen(  # noqa: S603 -- the image's own Python, in a sandbox without a network
                [sys.executable, "-I", "-S", "-c", _LIMITED, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error_output,
                cwd="/",
                env={},
                pass_fds=own,
                start_new_session=True,
            )
        os.close(own.pop(0))
        try:
            init_pid = bwrap.read_init(info)
            init = identify(init_pid) if init_pid else None
            if init is not None:
                hold_processes(init, _MOST_PROCESSES)
            os.close(go)
            go = -1
            process.wait(_STARTS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return f"it did not end within {_STARTS_WITHIN_S:.0f} s"
        finally:
            if process.poll() is None:  # with bubblewrap its whole sandbox goes
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        for fd in (info, go, *own):
            if fd >= 0:
                os.close(fd)
    if process.returncode == 0:
        return ""
    return (
        _head(errors, LARGEST_ANSWER_BYTES).decode(errors="replace")[-600:]
        or f"exit code {process.returncode}"
    )


def _head(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most_bytes)
