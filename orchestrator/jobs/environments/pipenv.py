"""Reads the packages of a project of Pipenv: its ``Pipfile`` and ``Pipfile.lock``."""

import json
import platform
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from orchestrator.exceptions import Sentence
from orchestrator.jobs.environments.declared import Declared, refused
from orchestrator.jobs.environments.poetry import indexes_of, is_local, requirement


def read_pipfile_lock(name: str, text: str) -> Declared:
    """Read the versions that a lock names for everybody; those of developers are left out.

    Raises:
        Malformed: with the file, the package and what it should be.
    """
    try:
        lock = json.loads(text)
    except (ValueError, RecursionError):
        lock = None
    meta = lock.get("_meta") if isinstance(lock, Mapping) else None
    listed = lock.get("default") if isinstance(lock, Mapping) else None
    if not isinstance(listed, Mapping):
        raise refused(Sentence("{name} is no lock of Pipenv; write it with: pipenv lock", name=name))
    meta = meta if isinstance(meta, Mapping) else {}
    return _read(name, listed, meta.get("sources"), meta.get("requires"), locked=True)


def read_pipfile(name: str, table: Mapping[str, Any]) -> Declared | None:
    """Read ``[packages]`` of a Pipfile; None without that table.

    Raises:
        Malformed: with the file, the package and what it should be.
    """
    listed = table.get("packages")
    if not isinstance(listed, Mapping):
        return None
    return _read(name, listed, table.get("source"), table.get("requires"), locked=False)


def _read(
    name: str, listed: Mapping[str, Any], sources: object, requires: object, *, locked: bool
) -> Declared:
    local = [package for package, wanted in listed.items() if is_local(wanted)]
    lines = [requirement(name, package, wanted) for package, wanted in listed.items() if package not in local]
    notes = []
    if local:
        notes.append(
            f"{name}: {', '.join(local[:5])} lie in folders of the machine that wrote it, and are not installed; what the "
            "upload has is importable anyway."
        )
    made_for = requires.get("python_version") if isinstance(requires, Mapping) else None
    here = platform.python_version()
    if isinstance(made_for, str) and not f"{here}.".startswith(f"{made_for}."):
        notes.append(f"{name} was made with Python {made_for[:20]}; this server runs jobs with {here}.")
    further = [each for each in sources if not _is_usual(each)] if isinstance(sources, list) else []
    return Declared(name, lines=(*indexes_of(name, further), *lines), locked=locked, notes=tuple(notes))


def _is_usual(source: object) -> bool:
    """Whether a source is the one that Pipenv writes into each new file; of this name, a company may have its own."""
    if not isinstance(source, Mapping) or source.get("name") != "pypi":
        return False
    return (urlsplit(str(source.get("url"))).hostname or "").split(".")[-2:-1] == ["pypi"]
