"""Runs uv in a sandbox, as a job runs: without Berth's state and people's homes, but with the network."""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings

from orchestrator.jobs.environments import base, sources
from orchestrator.jobs.launch import interpreters, isolation
from orchestrator.supervisor.sandbox import bwrap

MOST_S = 3600.0  # the largest packages over a slow line
LONGEST_OUTPUT = 200_000  # characters
# With this PYTHONHOME a Python ends before it runs a line.  So uv, which starts Python only to
# build packages from source, runs no code of others while it writes to the cache that everybody shares.
NO_PYTHON = {"PYTHONHOME": "/nonexistent/berth-builds-nothing-here"}


class NoTool(Exception):
    """uv is not installed."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    words: str  # standard output and errors

    @property
    def failed(self) -> bool:
        return self.status != 0


@dataclass(frozen=True, slots=True)
class Uv:
    """uv in one working folder; all that it says goes to the log as well."""

    folder: Path
    log: Path
    cache: Path
    writable: Path  # one folder around both: hard links do not cross the sandbox's mounts
    python: str = ""  # a registered interpreter; empty: the server's
    extra: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | Path) -> Answer:
        """Run uv to its end.

        Raises:
            NoTool: there is no uv.
            OSError: uv or the sandbox cannot be started.
        """
        words = [find(), *map(str, arguments)]
        with (
            self.log.open("a", encoding="utf-8") as log,
            tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        ):
            log.write(_short(f"$ uv {' '.join(words[1:])}\n"))
            log.flush()
            try:
                status = subprocess.run(  # noqa: S603 -- uv, in a sandbox
                    self._sandboxed(words),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=self._environment(),
                    timeout=MOST_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                status = -1
            said.seek(0)
            text = said.read(LONGEST_OUTPUT)
            if status == -1:
                text += f"\nerror: It did not end within {MOST_S:.0f} s."
            log.write(_short(text))
        return Answer(status, text)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            **sources.variables(),
            "UV_CACHE_DIR": str(self.cache),
            "UV_LINK_MODE": "hardlink",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "NO_COLOR": "1",
            **self.extra,
        }

    def _sandboxed(self, words: Sequence[str]) -> list[str]:
        level = isolation.level()
        if not level:
            return list(words)
        shown = [Path(words[0]), *sources.readable()]
        roots = interpreters.roots(self.python) if self.python else []
        launch = interpreters.trial(
            self.python or base.python(), roots, level, work=self.folder, read_only=shown
        )
        return bwrap.tool(launch, words, writable=[self.writable])


def _short(text: str) -> str:
    """A text for the owners of jobs, without the places of this server."""
    return text.replace(f"{settings.HOME.environments.root}/", "")


def find() -> str:
    """The path of uv: of Berth's own environment, else of the machine.

    Raises:
        NoTool: with what to do.
    """
    path = shutil.which("uv", path=f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', os.defpath)}")
    if path is None:
        raise NoTool("uv is not installed on this server; an administrator can install it: pip install uv")
    return os.path.realpath(path)
