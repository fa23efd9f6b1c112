"""Our own modules: what must hold so that they can be hashed and stay small."""

import gzip
import re
from pathlib import Path

from django.conf import settings

FOLDER = Path(settings.BASE_DIR) / "static" / "js"
IMPORT = re.compile(r"""(?:from\s+|import\(|import\s+)["']\./([\w-]+\.js)["']""")


AT_ONCE = re.compile(r"""(?:from\s+|^import\s+)["']\./([\w-]+\.js)["']""", re.MULTILINE)


def imports(pattern: re.Pattern[str] = IMPORT) -> dict[str, set[str]]:
    return {path.name: set(pattern.findall(path.read_text())) for path in FOLDER.glob("*.js")}


def test_no_module_needs_itself_over_others():
    """A file's name holds the hash of its content, which holds the names of what it imports."""
    open_ends = imports()
    while ready := [name for name, needed in open_ends.items() if not needed & open_ends.keys()]:
        for name in ready:
            del open_ends[name]

    assert open_ends == {}


def test_every_import_is_there():
    known = imports()

    assert {name for needed in known.values() for name in needed} <= known.keys()


def weight_bytes(names: set[str]) -> int:
    return sum(len(gzip.compress((FOLDER / name).read_bytes(), 9)) for name in names)


def with_all_they_need(entry: str, needs: dict[str, set[str]]) -> set[str]:
    found, waiting = set(), {entry}
    while waiting:
        found |= waiting
        waiting = {name for one in waiting for name in needs[one]} - found
    return found


def test_what_a_page_loads_is_small():
    """At once below 34 kB; with the menus, keys and views that it loads when they are asked for, below 43 kB."""
    at_once, in_time = imports(AT_ONCE), imports()
    for entry in in_time:
        assert weight_bytes(with_all_they_need(entry, at_once)) < 34_000, entry
        assert weight_bytes(with_all_they_need(entry, in_time)) < 43_000, entry


def test_all_of_our_scripts_together_are_small():
    assert weight_bytes(set(imports())) < 60_000
