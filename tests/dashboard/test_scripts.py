"""Our own modules: what must hold so that they can be hashed and stay small."""

import re
from pathlib import Path

from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage

from benchmarks.script_weights import FOLDER, WORDS, all_bytes, first_bytes, imports, weight_bytes
from orchestrator.server.static import HashedStaticFiles


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


def test_what_a_page_loads_is_small():
    """At once below 35 kB, the whole of a job page; what is loaded when it is asked for comes on top."""
    assert {entry: weight for entry, weight in first_bytes().items() if weight >= 35_000} == {}


def test_all_of_our_scripts_together_are_within_their_budget():
    """Nobody loads all: the sum tells when they grow, and pages are held to theirs above.

    The drawing of charts (4 kB) stands in it for 300 kB of Plotly, which a job's page no longer loads.
    """
    assert all_bytes() <= 70_700


def test_the_words_of_a_language_are_small():
    """A page loads them beside its scripts if it is not in English."""
    languages = {name for name in imports() if name.startswith(WORDS)}

    assert languages
    assert all(weight_bytes({name}) < 8_000 for name in languages)


def test_what_strips_our_scripts_reads_them_right():
    """It takes the first backtick inside ${} for the end of the text, and would squeeze what follows."""
    for path in FOLDER.glob("*.js"):
        assert not re.search(r"\$\{[^}]*`", path.read_text()), path.name


def test_scripts_are_stored_without_comments_and_those_of_others_as_they_are(tmp_path, settings):
    """Under their own names, and under those with a hash that pages and other scripts name."""
    source, stored = tmp_path / "source", tmp_path / "stored"
    files = {
        "js/one.js": "// why\nexport function one() {\n  return 1;\n}\n",
        "js/two.js": 'import { one } from "./one.js";\n\none();\n',
        "admin/js/other.js": "// theirs\n",
    }
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    storage = HashedStaticFiles(location=stored, base_url="/static/")
    here = FileSystemStorage(location=source)
    for name in files:
        with here.open(name) as file:
            storage.save(name, file)

    named = {name: after for name, after, _ in storage.post_process({name: (here, name) for name in files})}

    one = Path(named["js/one.js"]).name
    assert (stored / named["js/one.js"]).read_text() == "export function one(){return 1;}"
    assert (stored / named["js/two.js"]).read_text() == f'import{{one}}from"./{one}";one();'
    assert (stored / named["admin/js/other.js"]).read_text() == "// theirs\n"


def test_only_the_names_that_pages_use_are_compressed(tmp_path):
    """Each file is there twice, with and without a hash in its name; a first start waits for the compression."""
    source, stored = FileSystemStorage(location=tmp_path / "source"), tmp_path / "stored"
    storage = HashedStaticFiles(location=stored, base_url="/static/")
    source.save("page.css", ContentFile(b"a { color: red }\n" * 100))
    with source.open("page.css") as file:
        storage.save("page.css", file)

    named = {name: after for name, after, _ in storage.post_process({"page.css": (source, "page.css")})}

    hashed = named["page.css"]
    assert {path.name for path in stored.iterdir()} == {
        "page.css",
        *(hashed + end for end in ("", ".gz", ".br")),
        "staticfiles.json",
    }


def longest_chain(name: str, needs: dict[str, set[str]]) -> int:
    return 1 + max((longest_chain(one, needs) for one in needs[name]), default=0)


def test_names_with_hashes_settle_within_the_passes_that_collecting_them_has():
    """Each pass gives the files one link further up the chain their last names."""
    needs = imports()

    assert max(longest_chain(name, needs) for name in needs) < HashedStaticFiles.max_post_process_passes
