"""The files that list packages, which ``berth run`` sends beside the code."""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

from berth.client import BerthError
from berth.shared.package_lists import PACKAGE_FILES, text_of

_REFERS = re.compile(r"(?m)^\s*(?:-r|-c|--requirement|--constraint)[\s=]*([^\s#]+)")
_REFERS_IN_YAML = re.compile(r"(?m)^\s*-\s+[\"']?(?:-r|-c|--requirement|--constraint)[\s=]*([^\s#\"']+)")
MOST_FILES = 20


def named(value: str) -> str | Mapping[str, object]:
    """What ``--environment`` names: a file here, else something that the server knows by this name."""
    path = Path(value)
    return {"files": _texts(path)} if path.is_file() else value


def beside(script: Path) -> Mapping[str, object] | None:
    """Return the list of packages in a script's folder, or None without one."""
    for name in PACKAGE_FILES:
        path = script.parent / name
        if path.is_file():
            return {"files": _texts(path), "found": True}
    return None


def _texts(path: Path) -> dict[str, str]:
    """The text of a list and of what it refers to in its folder and below, by their paths from there."""
    texts: dict[str, str] = {}
    pending = [path.name, *(["pyproject.toml"] if path.name == "uv.lock" else [])]
    while pending and len(texts) < MOST_FILES:
        name = pending.pop(0)
        place = path.parent / name
        if name in texts or name.startswith((".", "/")) or not place.is_file():
            continue  # the server says which file it misses
        texts[name] = _read(place)
        if not name.endswith((".toml", ".lock")):
            folder = posixpath.dirname(name)
            refers = _REFERS_IN_YAML if name.endswith((".yml", ".yaml")) else _REFERS
            pending += [
                posixpath.normpath(posixpath.join(folder, each)) for each in refers.findall(texts[name])
            ]
    return texts


def _read(path: Path) -> str:
    try:
        return text_of(path.read_bytes())
    except OSError as error:
        raise BerthError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise BerthError(f"{path} is not UTF-8; save it as UTF-8 text.") from error
