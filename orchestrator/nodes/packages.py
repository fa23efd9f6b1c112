"""The packages of jobs on another server: built there from the locks of the first one, by a program apart.

The program has Berth's own settings there: its index, wheels, torch and sandbox.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from orchestrator.nodes.places import BASE, inside
from orchestrator.store.files.untrusted import remove_tree
from orchestrator.store.layout import BuiltEnvironment, EnvironmentsFolder, Home
from orchestrator.supervisor.protocol.records import Record, read_record, write_record

LOG = "builder.log"
BUILDER = "orchestrator.jobs.environments.elsewhere"
AGAIN_AFTER_S = 600.0  # after a build that failed: packages may be there later
KEPT_S = 30 * 24 * 3600.0
TIDY_EVERY_S = 3600.0


class Wanted(NamedTuple):
    """An environment of the first server."""

    key: str  # its name there
    lock: str
    sources: tuple[
        str, ...
    ] = ()  # lines of its request that say where packages come from, perhaps with passwords


class Stock(NamedTuple):
    """Which environments of the first server a server has, and why it cannot have others."""

    ready: tuple[str, ...]
    failed: Mapping[str, str]
    lacking: tuple[str, ...]  # to be built; empty while a build is at work


class Packages:
    """The environments below one state folder."""

    def __init__(self, home: Path) -> None:
        """Nothing that was built before is used unchecked: Berth, Python or torch may be others since.

        What a build of an earlier port answers after this is in a folder that is gone.
        """
        self._home = home
        self._places: EnvironmentsFolder = Home(home).environments
        for folder in self._places.root.glob("answers-*"):
            remove_tree(folder)
        self._answers = self._places.root / f"answers-{secrets.token_hex(4)}"
        self._build: subprocess.Popen[bytes] | None = None
        self._building = ""
        self._tidied_at = time.monotonic()

    def look(self, keys: Iterable[str]) -> Stock:
        """What is ready of these environments of the first server.

        Raises:
            OSError: the disk refuses.
        """
        self._tidy()
        ready, failed, lacking = [], {}, []
        is_at_work = self._is_at_work()
        for key in keys:
            if (built := self.place(key)) is not None:
                os.utime(built.root)  # in use
                ready.append(key)
            elif (why := (self._answer(key) or {}).get("why")) is not None:
                failed[key] = str(why)
            elif not is_at_work:
                lacking.append(key)
        return Stock(tuple(ready), failed, tuple(lacking))

    def build(self, wanted: Wanted) -> None:
        """Begin to build an environment, unless another build is at work; does not wait for it.

        Raises:
            OSError: the disk refuses.
        """
        if self._is_at_work() or self.place(wanted.key) is not None:
            return
        if self._places.work.is_dir():
            remove_tree(self._places.work)  # of builds that were killed
        self._begin(wanted)

    def _is_at_work(self) -> bool:
        """Whether a build is; one that ended without an answer has failed, and would only do so again."""
        if self._build is None:
            return False
        status = self._build.poll()
        if status is None:
            return True
        self._build = None
        if read_record(self._answers / f"{self._building}.json") is None:
            said = (self._answers / LOG).read_text(errors="replace").strip().splitlines()
            why = f"The program that builds it ended with status {status}: {said[-1] if said else 'it said nothing'}"
            write_record(self._answers / f"{self._building}.json", {"why": why[:2000]})
        return False

    def place(self, key: str) -> BuiltEnvironment | None:
        """Where an environment of the first server is here; None if it is not ready."""
        name = (self._answer(key) or {}).get("key")
        built = self._places.built(str(name)) if name else None
        return built if built is not None and built.python.exists() else None

    def with_ours(self, launch: Mapping[str, object], key: str, roots: Iterable[str]) -> Record | None:
        """A launch record that was moved here, with the packages of this server; None if they are not here.

        Args:
            roots: the folders that this server's Python needs.
        """
        built = self.place(key)
        if built is None:
            return None
        self._places.bytecode.mkdir(parents=True, exist_ok=True)
        ours = _replaced(launch, self._places.built(key).root, built.root)
        ours["python_roots"] = [*roots, str(built.root), str(self._places.bytecode), str(BASE)]
        return ours

    def moved_back(self, launch: Mapping[str, object], environments: Path) -> Record:
        """A launch record that was moved here, with the packages where the first server has them."""
        return _replaced(launch, self._places.root, environments)

    def close(self) -> None:
        """End the build that is at work; it begins again when it is asked for."""
        if self._build is not None and self._build.poll() is None:
            self._build.terminate()
            self._build.wait()

    def _answer(self, key: str) -> Record | None:
        path = self._answers / f"{key}.json"
        answer = read_record(path)
        if answer and answer.get("why") and time.time() - path.stat().st_mtime > AGAIN_AFTER_S:
            return None
        return answer

    def _begin(self, wanted: Wanted) -> None:
        self._answers.mkdir(mode=0o700, parents=True, exist_ok=True)
        answer, request = self._answers / f"{wanted.key}.json", self._answers / "request"
        write_record(request, {**wanted._asdict(), "answer": str(answer)})
        variables = {name: value for name, value in os.environ.items() if name != "BERTH_NODES"}
        variables |= {"BERTH_HOME": str(self._home), "PYTHONPATH": str(BASE)}
        self._building = wanted.key
        with (self._answers / LOG).open("wb") as log:
            self._build = subprocess.Popen(  # noqa: S603 -- our own program
                [sys.executable, "-m", BUILDER, str(request)],
                cwd=BASE,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _tidy(self) -> None:
        """Remove what no job has used for a month."""
        if time.monotonic() - self._tidied_at < TIDY_EVERY_S:
            return
        self._tidied_at = time.monotonic()
        for folder in (self._places.root / "built").glob("*"):
            if time.time() - folder.stat().st_mtime > KEPT_S:
                remove_tree(folder)


def _replaced(launch: Mapping[str, object], theirs: Path, ours: Path) -> Record:
    found: Record = json.loads(json.dumps(launch).replace(inside(str(theirs)), inside(str(ours))))
    return found
