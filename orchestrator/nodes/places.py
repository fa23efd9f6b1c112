"""Where Berth lies on a server, and launch records that were written for another one."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from orchestrator.supervisor.protocol.records import Record

BASE = Path(__file__).resolve().parents[2]  # of our packages


class Places(NamedTuple):
    """The paths of one server that launch records name."""

    home: str
    base: str
    python: str
    python_roots: tuple[str, ...]
    cpus: int


def places_here(home: Path) -> Places:
    """The places of this process."""
    return Places(str(home), str(BASE), sys.executable, _python_roots(), os.cpu_count() or 1)


def _python_roots() -> tuple[str, ...]:
    """The folders that this Python needs, with that of its shared library, which may be elsewhere."""
    roots = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    with open("/proc/self/maps") as maps:  # noqa: PTH123 -- a Path adds nothing here
        libraries = {line.split(None, 5)[5].strip() for line in maps if "/libpython" in line}
    return tuple(dict.fromkeys([*roots, *(os.path.dirname(path) for path in sorted(libraries))]))  # noqa: PTH120


def moved(record: Mapping[str, object], written: Places, here: Places) -> Record:
    """A launch record with the paths of this server; the job's own Python must be Berth's."""
    text = json.dumps(record)
    for theirs, ours in ((written.home, here.home), (written.base, here.base)):
        text = text.replace(inside(theirs), inside(ours))
    launch: Record = json.loads(text)
    if record.get("python") == written.python:
        launch["python"], launch["python_roots"] = here.python, list(here.python_roots)
    threads = record.get("threads")
    if isinstance(threads, int):
        launch["threads"] = max(1, threads * here.cpus // written.cpus)
    return launch


def inside(path: str) -> str:
    """A path as it stands inside a JSON text."""
    return json.dumps(path)[1:-1]
