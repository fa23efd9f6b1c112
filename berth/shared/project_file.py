"""The file ``berth.toml`` of a project: what ``berth run`` would be told, by the names of a job's fields."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, TypeAlias

from berth.shared.arguments import WrongUse
from berth.shared.job_fields import BY_NAME, STARTS

NAME = "berth.toml"
Fields: TypeAlias = dict[str, Any]  # of a job; the client's Spec has their types
_NOT_HERE = frozenset({"source", "git"})  # the folder itself is the code


def read_project(folder: Path) -> Fields:
    """The fields in the folder's ``berth.toml``; none without the file.

    Raises:
        WrongUse: the file cannot be read, or has a key that is no field; the text names the line.
    """
    path = folder / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{path} cannot be read: {error}") from None
    return parse_project(text, str(path))


def parse_project(text: str, path: str) -> Fields:
    """The fields in the text of a ``berth.toml``.

    Args:
        path: for people.

    Raises:
        WrongUse: no TOML, or a key that is no field; the text names the line.
    """
    try:
        fields = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: no TOML, or a number of thousands of digits
        raise WrongUse(f"{path} is no TOML: {error}") from None
    for name in fields:
        if name not in BY_NAME or name in _NOT_HERE:
            raise WrongUse(_unknown(path, text, name))
    return {name: _plain(value) for name, value in fields.items()}


def merge(project: Fields, given: Fields, *, names_script: bool) -> Fields:
    """The fields of the file, with those given on the command line in their place; variables are joined.

    Args:
        names_script: the command line names a script, so the file's start does not count.
    """
    has_start = names_script or any(given.get(name) for name in STARTS)
    kept = {name: value for name, value in project.items() if not (has_start and name in STARTS)}
    merged: Fields = {**kept, **given}
    if isinstance(kept.get("env"), Mapping) and "env" in given:
        merged["env"] = {**kept["env"], **given["env"]}
    return merged


def _unknown(path: str, text: str, name: str) -> str:
    line = _line_of(text, name)
    near = difflib.get_close_matches(name, BY_NAME.keys() - _NOT_HERE, n=1, cutoff=0.5)
    hint = f" Was {near[0]!r} meant?" if near else ""
    return f"{path}, line {line}: there is no field {name!r}.{hint} Fields of a job: docs/reference/job-fields.md"


def _line_of(text: str, name: str) -> int:
    """The line in which a key of the top level, or the table of its name, begins."""
    key = re.escape(name)
    start = re.compile(rf"""\s*(?:\[+\s*)?["']?{key}["']?\s*(?:[=.\]]|$)""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if start.match(line)), 1)


def _plain(value: Any) -> Any:
    """A value as JSON has it; a time without a zone is one of this machine's."""
    match value:
        case datetime():
            return value.astimezone().isoformat()
        case date() | time():
            return value.isoformat()
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
    return value
