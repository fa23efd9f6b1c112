"""Accepted names of uploaded files, and the spelling in which they are stored."""

import sys
import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath

from orchestrator.exceptions import Malformed, Sentence

COMPONENT_BYTES = 255  # the limit of Linux file systems for one name
# Characters that change the direction or the line breaks of the text around them (Unicode, UAX 9).
INVISIBLE = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\ufeff"
)
WATCHED_PACKAGES = frozenset({"torch", "numpy", "training", "orchestrator"})


def printable(name: str) -> str:
    """A name for use in a sentence: escaped and shortened."""
    safe = ascii(name)[1:-1]
    return safe if len(safe) <= 120 else f"{safe[:100]}... ({len(name)} characters)"


def member_path(name: str, *, depth: int, name_bytes: int) -> str:
    """The path under which an uploaded file is stored: relative, NFC, without ``.`` or empty parts.

    Returns:
        An empty string for the top folder itself.

    Raises:
        Malformed: the name leaves the folder, is too long, or has forbidden characters.
    """
    path = unicodedata.normalize("NFC", name)
    _refuse_characters(name, path)
    if path.startswith("/"):
        raise Malformed(
            Sentence("'{printable}' is an absolute path; names must be relative.", printable=printable(name))
        )
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Malformed(
            Sentence(
                "'{printable}' leads out of the upload with '..'; remove it and try again.",
                printable=printable(name),
            )
        )
    if len(parts) > depth:
        raise Malformed(
            Sentence(
                "'{printable}' lies {parts} folders deep; at most {depth} are accepted.",
                printable=printable(name),
                parts=len(parts),
                depth=depth,
            )
        )
    path = "/".join(parts)
    if len(path.encode()) > name_bytes or any(len(part.encode()) > COMPONENT_BYTES for part in parts):
        raise Malformed(
            Sentence(
                "The name '{printable}' is too long; at most {name_bytes} bytes in all and {component_bytes} for each part are accepted.",
                printable=printable(name),
                name_bytes=name_bytes,
                component_bytes=COMPONENT_BYTES,
            )
        )
    return path


def _refuse_characters(name: str, path: str) -> None:
    for character in path:
        if character in ":\\":
            raise Malformed(
                Sentence(
                    "'{printable}' has a '{character}' in its name; rename the file.",
                    printable=printable(name),
                    character=character,
                )
            )
        if character in INVISIBLE or unicodedata.category(character) in ("Cc", "Cs"):
            raise Malformed(
                Sentence(
                    "'{printable}' has the character U+{ord:04X} in its name, which is invisible or changes the text around it; rename the file.",
                    printable=printable(name),
                    ord=ord(character),
                )
            )


class UploadNames:
    """The names of one upload so far.  Refuses duplicates, names that differ only in case, and files used as folders."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def add_file(self, path: str) -> None:
        for parent in PurePosixPath(path).parents:
            if str(parent) != ".":
                self.add_folder(str(parent))
        self._add(path, self._files, self._folders)

    def add_folder(self, path: str) -> None:
        folder = self._folders.get(path.casefold())
        if folder != path:
            self._add(path, self._folders, self._files)

    def _add(self, path: str, mine: dict[str, str], other: dict[str, str]) -> None:
        key = path.casefold()
        earlier = mine.get(key) or other.get(key)
        if earlier == path:
            raise Malformed(
                Sentence(
                    "'{printable}' is in the archive twice; keep one of them.", printable=printable(path)
                )
            )
        if earlier is not None:
            raise Malformed(
                Sentence(
                    "'{printable}' and '{printable_2}' differ only in case; rename one of them.",
                    printable=printable(path),
                    printable_2=printable(earlier),
                )
            )
        mine[key] = path


def shadowing_warnings(paths: Iterable[str]) -> list[str]:
    """A warning for every top-level file or package that hides a module which training code imports."""
    tops = {path.split("/")[0] for path in paths if "/" not in path or path.endswith("/__init__.py")}
    hidden = sorted(top.removesuffix(".py") for top in tops)
    return [
        Sentence(
            "'{name}' hides the module of the same name from every import; rename it if that is not intended.",
            name=name,
        )
        for name in hidden
        if name in sys.stdlib_module_names or name in WATCHED_PACKAGES
    ]
