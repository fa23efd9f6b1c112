"""Test files as pytest rewrites their asserts, kept beside them as pytest keeps them.

Every worker reads every test file. Where bytecode is not written, or all workers begin at the same moment, each
would rewrite all of them, which takes 7 s of a core.
"""

import contextlib
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from _pytest.assertion import rewrite

PATTERNS = ("test_*.py", "conftest.py")  # what pytest rewrites
_AS_BY_DEFAULT: Any = None  # a configuration of pytest without options for this


def keep_all(folder: Path) -> None:
    """Rewrite the test files of a folder whose kept form is missing or older, on all cores."""
    files = [file for pattern in PATTERNS for file in folder.rglob(pattern)]
    if stale := [file for file in files if rewrite._read_pyc(file, kept_at(file)) is None]:
        with ProcessPoolExecutor() as processes:
            finish(processes.map(keep, stale, chunksize=8))


def finish(results: Iterable[object]) -> None:
    """Wait for all of them; an error of one is raised."""
    for _ in results:
        pass


def kept_at(file: Path) -> Path:
    """Where pytest looks for the rewritten form of a file."""
    return rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"


def keep(file: Path) -> None:
    """Rewrite one file; one that cannot be read or written is left to pytest, which says why."""
    kept = kept_at(file)
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        digest, code = rewrite._rewrite_test(file, _AS_BY_DEFAULT)
        kept.parent.mkdir(exist_ok=True)
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        with draft.open("wb") as output:
            rewrite._write_pyc_fp(output, digest, code)
        draft.replace(kept)
