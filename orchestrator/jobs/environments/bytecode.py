"""Compiles the modules of a built environment, in the background and once for all that share them.

Jobs see environments read-only, so each start would compile what it imports: 3 s of a core with transformers.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from orchestrator.jobs.environments import base
from orchestrator.jobs.launch import interpreters, isolation
from orchestrator.store.layout import BuiltEnvironment
from orchestrator.supervisor.sandbox import bwrap

MOST_S = 1800.0


def compile_modules(place: BuiltEnvironment) -> None:
    """Compile the modules of an environment, or link what was compiled for another one.

    May be interrupted anywhere, or fail: the environment works without.

    Raises:
        OSError: a file cannot be written.
    """
    pool = settings.HOME.environments.bytecode / str(sys.implementation.cache_tag)
    pool.mkdir(parents=True, exist_ok=True)
    left = [path for path in _modules(place) if not _linked(_pooled(pool, path), _compiled(path))]
    if not left:
        return
    _compile(place, left)
    for path in left:
        _linked(_compiled(path), _pooled(pool, path))


def _modules(place: BuiltEnvironment) -> Iterator[Path]:
    for path in (place.root / "lib").rglob("*.py"):
        if path.is_file() and not _compiled(path).exists():
            yield path


def _compiled(path: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(path)))


def _pooled(pool: Path, path: Path) -> Path:
    """Modules that are links to one file in the cache share what is compiled of it."""
    about = path.stat()
    return pool / f"{about.st_ino}-{about.st_mtime_ns}-{about.st_size}.pyc"


def _linked(there: Path, wanted: Path) -> bool:
    """Make a hard link; False if there is nothing to link to."""
    wanted.parent.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        try:
            os.link(there, wanted)
        except FileNotFoundError:
            return False
    return True


def _compile(place: BuiltEnvironment, modules: Sequence[Path]) -> None:
    """Compile without the path of the environment in the result: the import puts the right one in."""
    with tempfile.TemporaryDirectory(dir=place.root, prefix=".compiling-") as folder:
        names = Path(folder) / "modules.txt"
        names.write_text("".join(f"{path}\n" for path in modules))
        words = [base.python(), "-I", "-m", "compileall", "-q", "-s", str(place.root), "-i", str(names)]
        if (nice := shutil.which("nice")) is not None:
            words = [nice, "-n", "19", *words]
        level = isolation.level()
        if level:
            launch = interpreters.trial(base.python(), [], level, work=place.root)
            words = bwrap.tool(launch, words, writable=[place.root])
        # Its status is of no use: packages have templates that are not Python.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603 -- our own command
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=MOST_S,
                check=False,
                env={"LANG": "C.UTF-8", "PATH": os.defpath},
            )
