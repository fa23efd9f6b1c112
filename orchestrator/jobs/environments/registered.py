"""Registered interpreters: packages of jobs are installed on top of what such a Python has."""

import functools
import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from orchestrator.jobs.environments.base import Base, Part
from orchestrator.jobs.environments.failures import CannotPrepare
from orchestrator.jobs.launch import interpreters
from orchestrator.jobs.launch.interpreters import DoesNotStart, Sites

_PROGRAM = '#!/bin/sh\nexec "${{0%/*}}/python" -c "import sys; from {module} import {name}; sys.exit({call}())" "$@"\n'


@dataclass(frozen=True, slots=True)
class RegisteredBase(Base):
    """What a registered interpreter has."""

    sites: Sites

    @property
    def facts(self) -> tuple[str, ...]:
        return self.sites.python, self.sites.version, *self.sites.folders

    @property
    def path_lines(self) -> tuple[str, ...]:
        # Not plain paths: its own .pth files count too, such as for projects in development mode.
        return tuple(f"import site; site.addsitedir({folder!r})" for folder in self.sites.folders)

    def link_into(self, folder: Path) -> None:
        """Make an empty folder: its packages are found by ``path_lines``."""
        folder.mkdir(parents=True)

    def write_programs(self, folder: Path) -> None:
        """Write the programs of its packages, which then run with the packages on top as well."""
        for found in _distributions(self.sites.folders):
            for entry in found.entry_points.select(group="console_scripts"):
                place = folder / entry.name
                if place.exists() or not entry.attr or "/" in entry.name:
                    continue
                name = entry.attr.partition(".")[0]
                place.write_text(_PROGRAM.format(module=entry.module, name=name, call=entry.attr))
                place.chmod(0o755)


def base_of(python: str) -> RegisteredBase:
    """The packages of a registered interpreter as they are now.

    Raises:
        CannotPrepare: it is no longer there, or does not start.
    """
    try:
        sites = interpreters.sites(python)
    except DoesNotStart as error:
        raise CannotPrepare("interpreter", str(error)) from None
    changed_at = tuple(os.stat(folder).st_mtime_ns for folder in sites.folders)  # noqa: PTH116 -- a text
    return _read(sites, changed_at)


@functools.lru_cache(maxsize=16)
def _read(sites: Sites, _changed_at: tuple[int, ...]) -> RegisteredBase:
    parts: dict[str, Part] = {}
    for found in _distributions(sites.folders):
        name = canonicalize_name(found.metadata["Name"] or "")
        if name and name not in parts:  # the first folder of the path wins
            headers = (found.read_text("METADATA") or "").partition("\n\n")[0]
            parts[name] = Part(name, found.version, f"{headers}\n", ())
    return RegisteredBase(tuple(parts[name] for name in sorted(parts)), sites)


def _distributions(folders: tuple[str, ...]) -> list[metadata.Distribution]:
    return list(metadata.distributions(path=list(folders)))
