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


def test_all_of_our_scripts_together_are_small():
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in FOLDER.glob("*.js")) < 40_000
