"""Calls back when the script has loaded a module.  Standard library only; the entry loads it by its folder."""

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from types import ModuleType
from typing import Any


class ImportHook:
    """A finder of modules: finds none itself, but has the others' loaders call ``wrap`` after they loaded a module.

    Args:
        modules: the full names of the modules to wait for.
        wrap: gets each of them once its code has run.
    """

    def __init__(self, modules: Collection[str], wrap: Callable[[ModuleType], None]) -> None:
        self._modules, self._wrap = modules, wrap

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that a later finder has for this name; None for a module that nobody waits for."""
        if name not in self._modules or self not in sys.meta_path:
            return None
        # Only the finders behind this one: another hook before it asks the same question.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            if find is None or (spec := find(name, path, target)) is None:
                continue
            if spec.loader is not None:
                self._wrap_after_load(spec.loader)
            return spec
        return None

    def _wrap_after_load(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._wrap(module)

        with suppress(AttributeError):  # a loader that lets nobody replace its methods
            loader.exec_module = exec_module
