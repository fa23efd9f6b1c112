"""Reads the packages of a project of Pipenv: its ``Pipfile`` and ``Pipfile.lock``."""

import json
import platform
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.exceptions import Sentence
from orchestrator.jobs.environments.declared import Declared, refused
from orchestrator.jobs.environments.poetry import is_local, requirement

_ITS_USUAL_INDEX = "pypi"


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
    return Declared(name, lines=(*_indexes(sources), *lines), locked=locked, notes=tuple(notes))


def _indexes(sources: object) -> Iterator[str]:
    for source in sources if isinstance(sources, list) else []:
        if not isinstance(source, Mapping) or source.get("name") == _ITS_USUAL_INDEX:
            continue
        address = source.get("url")
        if isinstance(address, str) and address.startswith(("https://", "http://")):
            yield f"--extra-index-url {address}"
