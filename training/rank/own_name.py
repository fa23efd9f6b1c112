"""This library under another name, for code that has a package of its own called ``training``.

Standard library only.  The entry loads this module by its folder where the code has a folder of that name or a program of
ours is run.
"""

# ruff: noqa: PTH100, PTH109, PTH112, PTH113, PTH118, PTH120 -- no pathlib: the entry has not imported it

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import ast
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import islice
from types import CodeType, ModuleType
from typing import Any

NAME, OTHER_NAME = "training", "_berth_training"
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MODULE = re.compile(r"training(?:\.\w+)+")


def of_module(module: str) -> str:
    """The name to run a module by: of ours another one if the code's own package hides it."""
    place = _hiding_place()
    if place is None or _is_in(place, module):
        return module
    sys.meta_path.insert(0, _Finder())
    return OTHER_NAME + module[len(NAME) :]


def of_runner(model_file: str) -> str:
    """The name to run ``python -m training`` by, with the folder of its file on the path; empty if nothing hides ours."""
    before = sys.path[0]
    sys.path[0] = os.path.dirname(os.path.realpath(model_file))
    place = _hiding_place()
    if place is None:
        sys.path[0] = before
        return ""
    prefer(place)
    sys.meta_path.insert(0, _Finder())
    return f"{OTHER_NAME}.__main__"


def _hiding_place() -> str | None:
    """The folder, or the file without its ending, that the code means by ``training``; None if that is ours."""
    for folder in sys.path:
        place = os.path.join(folder or os.getcwd(), NAME)
        if os.path.realpath(place) == os.path.realpath(_FOLDER):
            return None
        if os.path.isfile(f"{place}.py") or _has_modules(place):
            return place
    return None


def _has_modules(folder: str) -> bool:
    """Whether a folder is code, with or without ``__init__.py``; a folder of training samples is not."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(".py") for entry in islice(entries, 1000))
    except OSError:
        return False


def prefer(place: str) -> None:
    """Let a folder of the code be ``training`` if it is code without ``__init__.py``.

    Python prefers our package to it, from any place of the path.
    """
    if _has_modules(place) and not os.path.isfile(os.path.join(place, "__init__.py")):
        sys.meta_path.insert(0, _Namespace(place))


class _Namespace:
    """Finds a folder without ``__init__.py`` as ``training``."""

    def __init__(self, place: str) -> None:
        self._place = place

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [self._place]
        return spec


def _is_in(place: str, module: str) -> bool:
    """Whether the code's own package has this module."""
    path = os.path.join(place, *module.split(".")[1:])
    return any(map(os.path.isfile, (f"{path}.py", os.path.join(path, "__main__.py"))))


class _Finder:
    """Finds this library below its other name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != OTHER_NAME:
            return None
        place = os.path.join(_FOLDER, *fullname.split(".")[1:])
        if os.path.isdir(place):
            file = os.path.join(place, "__init__.py")
            loader = _Renaming(fullname, file)
            return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=[place])
        file = f"{place}.py"
        if not os.path.isfile(file):
            return None
        return spec_from_file_location(fullname, file, loader=_Renaming(fullname, file))


class _Renaming(SourceFileLoader):
    """Compiles a module of ours so that it imports the others by the other name."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile again: the cached code of this file carries the usual name."""
        tree = _Imports().visit(ast.parse(self.get_data(self.path), self.path))
        code: CodeType = compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)
        return code


class _Imports(ast.NodeTransformer):
    """Replaces the name in ``from training.x import y``, and where a module is named by a text."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if not node.level and node.module and node.module.partition(".")[0] == NAME:
            node.module = OTHER_NAME + node.module[len(NAME) :]
        return node

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            return ast.copy_location(ast.Constant(OTHER_NAME + node.value[len(NAME) :]), node)
        return node
