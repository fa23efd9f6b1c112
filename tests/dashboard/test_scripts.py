"""Our own modules: what must hold so that they can be hashed and stay small."""

import gzip
import re
from pathlib import Path

from django.conf import settings

FOLDER = Path(settings.BASE_DIR) / "static" / "js"
IMPORT = re.compile(r"""(?:from\s+|import\(|import\s+)["']\./([\w-]+\.js)["']""")


def imports() -> dict[str, set[str]]:
    return {path.name: set(IMPORT.findall(path.read_text())) for path in FOLDER.glob("*.js")}


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


def test_what_one_page_may_load_is_small():
    """Whatever a page imports, at once or when it is needed, stays below 40 kB."""
    known = imports()
    for entry in known:
        loaded, waiting = set(), {entry}
        while waiting:
            loaded |= waiting
            waiting = {name for one in waiting for name in known[one]} - loaded
        assert weight_bytes(loaded) < 40_000, entry


def test_all_of_our_scripts_together_are_small():
    assert weight_bytes(set(imports())) < 60_000
