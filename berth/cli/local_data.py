"""Data that a command names by a path of this machine."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

from berth.client import Berth, BerthError, NotFound
from berth.uploads.pushing import Tell, name_of

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NAMED_PATH = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]{0,63})=)?(.*)", re.DOTALL)
_CERTAIN = ("/", "./", "../", "~")


def is_path(text: str) -> bool:
    """Whether a text cannot be the name of a dataset: it begins as paths do."""
    rest = text.partition("=")[2] or text
    return "://" not in text and (rest.startswith(_CERTAIN) or rest in {".", ".."})


def push_named(berth: Berth, text: str, say: Callable[[str], None], tell: Tell | None = None) -> str:
    """What a job is to name: a text as it is, or the dataset of a file or folder of this machine, pushed on the way.

    ``./digits`` and ``/data/digits`` are paths. ``digits`` is a dataset of the server, or else a path.

    Raises:
        BerthError: there is no such path, or it cannot be pushed.
    """
    matched = _NAMED_PATH.fullmatch(text)
    if "://" in text or matched is None:
        return text
    path = Path(matched[2]).expanduser()
    if not path.exists():
        if is_path(text):
            raise BerthError(f"There is nothing at {path} on this machine; check the path.")
        return text
    if not is_path(text) and _is_dataset(berth, matched[2]):
        say(f"{text} is a dataset of the server; for the one in this folder write ./{text}")
        return text
    if known := _at(berth, path):
        say(f"{path} is the dataset {known}; nothing is copied.")
        return known
    pushed = berth.push(matched[1] or name_of(path), path, tell=tell)
    say(f"{path} is your dataset {pushed.reference}.")
    return pushed.reference


def _is_dataset(berth: Berth, reference: str) -> bool:
    try:
        berth.get(f"/datasets/{quote(reference)}")
    except NotFound:
        return False
    return True


def _at(berth: Berth, path: Path) -> str | None:
    """The registered dataset of a path, where client and server are one machine."""
    if urlsplit(berth.url).hostname not in _LOOPBACK:
        return None
    found = list(berth.pages("/datasets", {"path": str(path.resolve())}))
    return str(found[0]["reference"]) if found else None
