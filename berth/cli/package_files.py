"""The files that list packages, which ``berth run`` sends beside the code."""

import configparser
import posixpath
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from berth.client import BerthError
from berth.shared.package_lists import PACKAGE_FILES, PROJECT_LOCKS, text_of

_REFERS = re.compile(r"(?m)^\s*(?:-r|-c|--requirement|--constraint)[\s=]*([^\s#]+)")
_REFERS_IN_YAML = re.compile(r"(?m)^\s*-\s+[\"']?(?:-r|-c|--requirement|--constraint)[\s=]*([^\s#\"']+)")
MOST_FILES = 20


def named(value: str) -> str | Mapping[str, object]:
    """What ``--environment`` names: a file here, else something that the server knows by this name."""
    path = Path(value)
    return {"files": _texts(path)} if path.is_file() else value


def beside(script: Path) -> Mapping[str, object] | None:
    """Return the list of packages in a script's folder, or None without one.

    A project file may list none, so those that come after it are sent as well.
    """
    there = [name for name in PACKAGE_FILES if (script.parent / name).is_file()]
    if not there:
        return None
    is_list = PACKAGE_FILES.index(there[0]) < PACKAGE_FILES.index("pyproject.toml")
    further = () if is_list else there[1:]
    return {"files": _texts(script.parent / there[0], *further), "found": True}


def _texts(path: Path, *further: str) -> dict[str, str]:
    """The text of a list and of what it refers to in its folder and below, by their paths from there.

    Args:
        further: names of other lists in the folder.
    """
    texts: dict[str, str] = {}
    pending = [path.name, *further]
    while pending and len(texts) < MOST_FILES:
        name = pending.pop(0)
        place = path.parent / name
        if name in texts or name.startswith((".", "/")) or not place.is_file():
            continue  # the server says which file it misses
        texts[name] = _read(place)
        if name in ("uv.lock", *PROJECT_LOCKS):
            pending.append("pyproject.toml")
        elif name in ("pyproject.toml", "setup.cfg"):
            pending += [*PROJECT_LOCKS, *_lists_of(name, texts[name])]
        elif not name.endswith((".toml", ".lock", ".py")):
            folder = posixpath.dirname(name)
            refers = _REFERS_IN_YAML if name.endswith((".yml", ".yaml")) else _REFERS
            pending += [
                posixpath.normpath(posixpath.join(folder, each)) for each in refers.findall(texts[name])
            ]
    return texts


def _lists_of(name: str, text: str) -> list[str]:
    """The lists that setuptools reads for a project file; what is wrong in it, the server says."""
    if name == "setup.cfg":
        parser = configparser.RawConfigParser(strict=False)
        with suppress(configparser.Error):
            parser.read_string(text)
        named = parser.get("options", "install_requires", fallback="").strip()
        return (
            [each.strip() for each in named.removeprefix("file:").split(",")]
            if named.startswith("file:")
            else []
        )
    try:
        found: Any = tomllib.loads(text)
        for key in ("tool", "setuptools", "dynamic", "dependencies", "file"):
            found = found[key]
    except (ValueError, RecursionError, LookupError, TypeError):
        return []
    named = [found] if isinstance(found, str) else found
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        return data.decode(errors="replace") if path.suffix == ".py" else text_of(data)
    except OSError as error:
        raise BerthError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise BerthError(f"{path} is not UTF-8; save it as UTF-8 text.") from error
