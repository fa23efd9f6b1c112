"""Our own modules: what must hold so that they can be hashed and stay small."""

import gzip
import re
from pathlib import Path

import rjsmin
from django.conf import settings
from django.core.files.base import ContentFile

from orchestrator.config.static import HashedStaticFiles

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
    """As they are served: stripped (orchestrator/config/static.py), and compressed."""
    return sum(len(gzip.compress(rjsmin.jsmin((FOLDER / name).read_bytes()), 9)) for name in names)


def with_all_they_need(entry: str, needs: dict[str, set[str]]) -> set[str]:
    found, waiting = set(), {entry}
    while waiting:
        found |= waiting
        waiting = {name for one in waiting for name in needs[one]} - found
    return found


def test_what_a_page_loads_is_small():
    """At once below 27 kB, the whole of a job page; what is loaded when it is asked for comes on top."""
    at_once = imports(AT_ONCE)
    for entry in at_once:
        assert weight_bytes(with_all_they_need(entry, at_once)) < 27_000, entry


def test_all_of_our_scripts_together_are_within_their_budget():
    assert weight_bytes(set(imports())) <= 40_000


def test_what_strips_our_scripts_reads_them_right():
    """It takes the first backtick inside ${} for the end of the text, and would squeeze what follows."""
    for path in FOLDER.glob("*.js"):
        assert not re.search(r"\$\{[^}]*`", path.read_text()), path.name


def test_scripts_are_stored_without_comments_and_those_of_others_as_they_are(tmp_path):
    storage = HashedStaticFiles(location=tmp_path, base_url="/static/")
    text = b"// why\nexport function one() {\n  return 1;\n}\n"

    own, other = (
        tmp_path / storage.save(name, ContentFile(text)) for name in ("js/one.js", "admin/js/one.js")
    )

    assert own.read_bytes() == b"export function one(){return 1;}"
    assert other.read_bytes() == text
