"""Compiles the modules of a built environment, in the background and once for all that share them.

Jobs see environments read-only, so each start would compile what it imports: 3 s of a core with transformers.
"""

import hashlib
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
from orchestrator.store.files.untrusted import remove_tree, walk_tree
from orchestrator.store.layout import BuiltEnvironment
from orchestrator.supervisor.sandbox import bwrap

MOST_S = 1800.0
CACHE = "__pycache__"


def compile_modules(place: BuiltEnvironment) -> None:
    """Compile the modules of an environment, folder by folder, or link to what was compiled for another one.

    May be interrupted anywhere, or fail: the environment works without.

    Raises:
        OSError: a file cannot be written.
    """
    pool = settings.HOME.environments.bytecode / f"{sys.version_info.major}{sys.version_info.minor}"
    pool.mkdir(parents=True, exist_ok=True)
    left = [(folder, _pooled(pool, modules)) for folder, modules in _folders(place)]
    left = [(folder, shared) for folder, shared in left if not _linked(folder, shared)]
    if not left:
        return
    _compile(place, [folder for folder, _ in left])
    for folder, shared in left:
        _share(folder / CACHE, shared)
        _linked(folder, shared)


def _folders(place: BuiltEnvironment) -> Iterator[tuple[Path, list[Path]]]:
    """Folders with modules that are not compiled."""
    for folder, _, names in walk_tree(place.root / "lib"):
        modules = [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
        if modules and not Path(folder, CACHE).exists():
            yield Path(folder), modules


def _pooled(pool: Path, modules: Sequence[Path]) -> Path:
    """Folders whose modules are links to the same files in the cache share what is compiled of them."""
    facts = []
    for path in modules:
        about = path.stat()
        facts.append(f"{path.name} {about.st_ino} {about.st_mtime_ns} {about.st_size}")
    return pool / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:14]


def _linked(folder: Path, shared: Path) -> bool:
    """Make the link; False if there is nothing to link to.  A relative one of less than 60 characters takes no space on the disk."""
    if not shared.is_dir():
        return False
    with suppress(FileExistsError):
        (folder / CACHE).symlink_to(os.path.relpath(shared, folder))
    return True


def _share(made: Path, shared: Path) -> None:
    """Put a compiled folder into the pool; nothing where the compiler made none, or another was quicker."""
    with suppress(FileNotFoundError):
        try:
            made.rename(shared)
        except OSError:
            if not shared.is_dir():
                raise
            remove_tree(made)


def remove_unused(root: Path) -> None:
    """Remove from the pool what no environment links to."""
    used = set()
    for place in (root / "built").glob("*"):
        for folder, _, names in walk_tree(place / "lib"):
            if CACHE in names:
                used.add((Path(folder) / CACHE).resolve().name)
    for shared in (root / "bytecode").glob("*/*"):
        if shared.name not in used:
            remove_tree(shared)


def _compile(place: BuiltEnvironment, folders: Sequence[Path]) -> None:
    """Compile without the path of the environment in the result: the import puts the right one in."""
    with tempfile.TemporaryDirectory(dir=place.root, prefix=".compiling-") as folder:
        names = Path(folder) / "folders.txt"
        names.write_text("".join(f"{path}\n" for path in folders))
        words = [base.python(), "-I", "-m", "compileall", "-q", "-l", "-s", str(place.root), "-i", str(names)]
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
