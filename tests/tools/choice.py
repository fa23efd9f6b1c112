"""Which test files a change concerns, the nearest first."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("berth", "orchestrator", "dashboard", "training", "benchmarks", "tests")
# What is no package but has a room of tests.
ROOMS = {"templates": "tests/dashboard", "static": "tests/dashboard", "docs": "tests/deploy"}
EVERYWHERE = ("pyproject.toml", "requirements/", "tests/conftest.py", "tests/settings.py")


def changed_files(root: Path = ROOT) -> list[str]:
    """Files that differ from where this branch left main, and new ones; on main those of the last commit."""
    base = _git(root, "merge-base", "HEAD", "main") or ["HEAD"]
    changed = _changes_since(root, base[0])
    return changed or _changes_since(root, "HEAD~1")


def _changes_since(root: Path, commit: str) -> list[str]:
    tracked = _git(root, "diff", "--name-only", "--diff-filter=d", commit, "--")
    return sorted({*tracked, *_git(root, "ls-files", "--others", "--exclude-standard")})


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def files_for(files: Sequence[str], root: Path = ROOT) -> list[str]:
    """Test files of a change: the changed ones, then those that name what changed, then the rest of its rooms."""
    test_files = sorted(str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py"))
    near = [file for file in files if file in test_files]
    naming = [test for test in test_files if any(_names(root / test, file) for file in files)]
    rooms = [room for file in files if (room := room_of(file, root))]
    beside = [test for test in test_files if any(test.startswith(f"{room}/") for room in rooms)]
    everything = test_files if any(file.startswith(EVERYWHERE) for file in files) else []
    return list(dict.fromkeys([*near, *naming, *beside, *everything]))


def room_of(file: str, root: Path = ROOT) -> str | None:
    """The folder of tests that mirrors a file's room: tests/scheduler/core for orchestrator/scheduler/core/state.py."""
    folders = Path(file).parts[:-1]
    if folders and folders[0] == "tests":
        return "/".join(folders) if len(folders) > 1 else None
    if folders and folders[0] in ROOMS:
        return ROOMS[folders[0]]
    return next((room for room in _mirrors(folders) if (root / room).is_dir()), None)


def _mirrors(folders: tuple[str, ...]) -> Iterator[str]:
    for end in range(len(folders), 0, -1):
        for start in range(end):
            yield "/".join(("tests", *folders[start:end]))


def _names(test: Path, file: str) -> bool:
    """Does a test import a module, or write a file's name?"""
    path = Path(file)
    if path.suffix == ".py" and path.parts[0] in PACKAGES:
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        return module in imports_of(test) or bool(re.search(rf"\b{re.escape(module)}\b", _text(test)))
    return path.name in _text(test)


@cache
def _text(path: Path) -> str:
    return path.read_text()


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module that a file may import: of ``from a import b`` both ``a`` and ``a.b``."""
    return frozenset(_imported(ast.walk(ast.parse(_text(path)))))


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
