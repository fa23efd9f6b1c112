"""Reads what setup.cfg and setup.py say of a project's packages; nothing of them is run."""

import ast
import configparser
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from orchestrator.exceptions import Sentence
from orchestrator.jobs.environments.declared import Declared, Read, refused
from orchestrator.jobs.environments.requirement_files import read_requirements

_FILE = "file:"
MOST_DEEP = 4  # sums of names of sums double with each
LARGEST_SETUP_CHARS = 256 << 10  # parsing these takes 0.4 s


def read_setup_cfg(name: str, text: str, read: Read) -> Declared | None:
    """Read ``install_requires`` of ``[options]``; None without it.

    Raises:
        Malformed: with the file, the line and what it should be.
    """
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text.removeprefix("\ufeff"))
    except configparser.Error as error:
        told = " ".join(str(error).split())[:200]
        raise refused(Sentence("{name} cannot be read: {told}.", name=name, told=told)) from None
    if not parser.has_option("options", "install_requires"):
        return None
    listed = parser.get("options", "install_requires")
    requires = parser.get("options", "python_requires", fallback="").strip()
    if (note := _other_python(name, requires)) is not None:
        return Declared(name, notes=(note,))
    if listed.strip().startswith(_FILE):
        return read_named(name, listed.strip().removeprefix(_FILE).split(","), read, requires)
    rows = listed.splitlines() if "\n" in listed else listed.split(";")  # as setuptools does
    return read_rows(name, rows, read, requires)


def read_setup_py(name: str, text: str, read: Read) -> Declared | None:
    """Read ``install_requires`` of the call of ``setup``, as far as it stands there word by word.

    Returns:
        None without it; a note alone where code makes the list.

    Raises:
        Malformed: with the file, the line and what it should be.
    """
    if len(text) > LARGEST_SETUP_CHARS:
        return None
    try:
        tree = ast.parse(text.removeprefix("\ufeff"))
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # a job may bring it along without using it
    call = next((node for node in nodes if isinstance(node, ast.Call) and _is_setup(node)), None)
    words = {each.arg: each.value for each in call.keywords} if call else {}
    if "install_requires" not in words:
        return None
    named = _constants(tree, nodes)
    rows = _value(words["install_requires"], named)
    rows = rows.splitlines() if isinstance(rows, str) else rows
    if not isinstance(rows, list):
        return Declared(
            name,
            notes=(
                f"{name} makes its list of packages by code, which Berth does not run; nothing of it is installed. List "
                "the packages in requirements.txt, or below dependencies in pyproject.toml.",
            ),
        )
    requires = _value(words["python_requires"], named) if "python_requires" in words else ""
    requires = requires if isinstance(requires, str) else ""
    if (note := _other_python(name, requires)) is not None:
        return Declared(name, notes=(note,))
    return read_rows(name, rows, read, requires)


def read_dynamic(name: str, project: Mapping[str, Any], tool: object, read: Read) -> Declared | None:
    """Read the lists that ``[tool.setuptools.dynamic]`` names for ``dependencies``; None without such.

    Raises:
        Malformed: with the file, the line and what it should be.
    """
    setuptools = tool.get("setuptools") if isinstance(tool, Mapping) else None
    dynamic = setuptools.get("dynamic") if isinstance(setuptools, Mapping) else None
    listed = dynamic.get("dependencies") if isinstance(dynamic, Mapping) else None
    files = listed.get("file") if isinstance(listed, Mapping) else None
    names = [files] if isinstance(files, str) else files
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        return None
    requires = project.get("requires-python", "")
    return read_named(name, names, read, requires if isinstance(requires, str) else "")


def read_named(name: str, files: Sequence[str], read: Read, requires_python: str) -> Declared:
    """Read the lists of packages that a project file names; a note alone where one was not sent.

    Raises:
        Malformed: one of them cannot be read.
    """
    named = [each.strip() for each in files if each.strip()]
    for each in named:
        if read(str(PurePosixPath(name).parent / each)) is None:
            return Declared(
                name, notes=(f"{name} names {each}, which is not in the code; nothing of it is installed.",)
            )
    return read_rows(name, [f"-r {each}" for each in named], read, requires_python)


def read_rows(name: str, rows: Sequence[str], read: Read, requires_python: str) -> Declared:
    """Read packages as lines of a requirements file.

    Raises:
        Malformed: with the line and what it should be.
    """
    found = read_requirements(f"{name}: install_requires", "\n".join(rows), read)
    return Declared(
        name,
        lines=found.lines,
        constraints=found.constraints,
        prereleases=found.prereleases,
        requires_python=requires_python,
        notes=found.notes,
    )


def _other_python(name: str, requires: str) -> str | None:
    """A note where a project is not for this server's Python: nobody named its file, so it refuses no job."""
    here = platform.python_version()
    try:
        fits = SpecifierSet(requires).contains(here, prereleases=True)
    except (InvalidSpecifier, ValueError):
        fits = False
    if fits:
        return None
    return (
        f"{name} asks for Python {requires[:80]}, and this server runs jobs with {here}; its packages are not installed. "
        "List them in requirements.txt."
    )


def _is_setup(call: ast.Call) -> bool:
    called = call.func
    return (isinstance(called, ast.Name) and called.id == "setup") or (
        isinstance(called, ast.Attribute) and called.attr == "setup"
    )


def _constants(tree: ast.Module, nodes: Sequence[ast.AST]) -> Mapping[str, ast.expr]:
    """The names that are set once, at the top, and not changed in place."""
    stored = Counter(
        each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    )
    changed = {
        each.value.id
        for each in nodes
        if isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.value, ast.Name)
    }
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and stored[target.id] == 1 and target.id not in changed
    }


def _value(node: ast.expr, named: Mapping[str, ast.expr], deep: int = 0) -> str | list[str] | None:
    """A text, a list of texts, what a name of one stands for, or a sum of lists; None where code is needed for it."""
    if isinstance(node, ast.Name) and deep < MOST_DEEP:
        return _value(named[node.id], named, deep + 1) if node.id in named else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and deep < MOST_DEEP:
        left, right = _value(node.left, named, deep + 1), _value(node.right, named, deep + 1)
        return [*left, *right] if isinstance(left, list) and isinstance(right, list) else None
    if isinstance(node, ast.List | ast.Tuple):
        texts = [each.value for each in node.elts if isinstance(each, ast.Constant)]
        found = [text for text in texts if isinstance(text, str)]
        return found if len(found) == len(node.elts) else None
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
