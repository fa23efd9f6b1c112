"""Reads what setup.cfg and setup.py say of a project's packages; nothing of them is run."""

import ast
import configparser
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.exceptions import Sentence
from orchestrator.jobs.environments.declared import Declared, Read, refused
from orchestrator.jobs.environments.requirement_files import read_requirements

_FILE = "file:"


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
    try:
        tree = ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # a job may bring it along without using it
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_setup(node)), None)
    words = {each.arg: each.value for each in call.keywords} if call else {}
    if "install_requires" not in words:
        return None
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    rows = _literal(words["install_requires"], named)
    if not isinstance(rows, list | tuple) or not all(isinstance(row, str) for row in rows):
        return Declared(
            name,
            notes=(
                f"{name} makes its list of packages by code, which Berth does not run; nothing of it is installed. List "
                "the packages in requirements.txt, or below dependencies in pyproject.toml.",
            ),
        )
    requires = _literal(words["python_requires"], named) if "python_requires" in words else ""
    return read_rows(name, list(rows), read, requires if isinstance(requires, str) else "")


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
    """Read the lists of packages that a project file names.

    Raises:
        Malformed: one of them is not there, or cannot be read.
    """
    return read_rows(name, [f"-r {each.strip()}" for each in files if each.strip()], read, requires_python)


def read_rows(name: str, rows: Sequence[str], read: Read, requires_python: str) -> Declared:
    """Read packages as lines of a requirements file.

    Raises:
        Malformed: with the line and what it should be.
    """
    found = read_requirements(name, "\n".join(rows), read)
    return Declared(
        name,
        lines=found.lines,
        constraints=found.constraints,
        prereleases=found.prereleases,
        requires_python=requires_python,
        notes=found.notes,
    )


def _is_setup(call: ast.Call) -> bool:
    called = call.func
    return (isinstance(called, ast.Name) and called.id == "setup") or (
        isinstance(called, ast.Attribute) and called.attr == "setup"
    )


def _literal(node: ast.expr, named: Mapping[str, ast.expr], deep: int = 0) -> object:
    """The value of a text, a list of texts, a name of one or a sum of such; None where code is needed for it."""
    if deep > 10:
        return None
    if isinstance(node, ast.Name):
        return _literal(named[node.id], named, deep + 1) if node.id in named else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _literal(node.left, named, deep + 1), _literal(node.right, named, deep + 1)
        return [*left, *right] if isinstance(left, list) and isinstance(right, list) else None
    if isinstance(node, ast.List | ast.Tuple):
        found = [_literal(each, named, deep + 1) for each in node.elts]
        return found if all(isinstance(each, str) for each in found) else None
    return node.value if isinstance(node, ast.Constant) else None
