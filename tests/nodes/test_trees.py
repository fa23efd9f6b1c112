"""Folders that become equal to those of another server."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.nodes.trees import PART, Arrivals, Chunk, entry_at, list_tree, read_chunk

NAMES = st.sampled_from(["a", "b", "c", "model.pt"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TREES = st.dictionaries(
    PATHS, st.binary(max_size=40) | st.sampled_from([None, "a", "../../outside"]), max_size=6
)


def make_tree(root: Path, tree: dict[str, bytes | str | None]) -> None:
    """Files of these bytes, links to these texts, and folders; what cannot stand beside another is left out."""
    for path, content in tree.items():
        place = root / "work" / path
        parents = [each for each in place.parents if each != root and each.is_relative_to(root)]
        if (
            place.exists()
            or place.is_symlink()
            or any(each.is_symlink() or each.is_file() for each in parents)
        ):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir()
        elif isinstance(content, bytes):
            place.write_bytes(content)
        else:
            place.symlink_to(content)


def bring(source: Path, to: Path, part_bytes: int = 1 << 20) -> None:
    """Make ``to`` as the source is, as a link does."""
    there, here = list_tree(source, ["work"]), list_tree(to, ["work"])
    arrivals = Arrivals(to)
    arrivals.remove([path for path in here if path not in there])
    arrivals.make(there)
    for path, entry in there.items():
        if entry.kind != "file" or entry.equals(here.get(path)):
            continue
        offset, arrived = 0, False
        while not arrived:
            chunk = read_chunk(source, path, offset, part_bytes)
            assert chunk is not None
            arrived = arrivals.take(chunk)
            offset += len(chunk.data)


def contents(root: Path) -> dict[str, tuple[str, object]]:
    return {
        path: (entry.kind, (root / path).read_bytes() if entry.kind == "file" else entry.target)
        for path, entry in list_tree(root, ["work"]).items()
    }


@given(before=TREES, after=TREES, part_bytes=st.integers(1, 50))
def test_any_folder_becomes_any_other(tmp_path_factory, before, after, part_bytes):
    source, to = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("to")
    (source / "work").mkdir()
    (to / "work").mkdir()
    make_tree(source, after)
    make_tree(to, before)

    bring(source, to, part_bytes)

    assert contents(to) == contents(source)
    assert not list(to.rglob(f"{PART}*"))


def test_file_keeps_its_time_and_mode_so_that_it_is_not_sent_again(tmp_path):
    source, to = tmp_path / "source", tmp_path / "to"
    for root in (source, to):
        (root / "work").mkdir(parents=True)
    script = source / "work" / "run.sh"
    script.write_text("echo")
    script.chmod(0o755)
    os.utime(script, ns=(1_000_000_007, 1_000_000_007))

    bring(source, to)

    entry, copy = entry_at(script), entry_at(to / "work" / "run.sh")
    assert entry is not None
    assert entry.equals(copy)
    assert copy is not None
    assert (copy.mode, copy.written_ns) == (0o755, 1_000_000_007)


def test_nothing_is_written_through_a_link(tmp_path):
    outside, to = tmp_path / "outside", tmp_path / "to"
    outside.mkdir()
    (to / "work").mkdir(parents=True)
    (to / "work" / "data").symlink_to(outside)
    source = tmp_path / "source"
    (source / "work" / "data").mkdir(parents=True)
    (source / "work" / "data" / "key").write_text("stolen")
    chunk = read_chunk(source, "work/data/key", 0, 100)
    assert chunk is not None

    with pytest.raises(OSError, match=r"directory|symbolic"):
        Arrivals(to).take(chunk)

    assert not list(outside.iterdir())


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "work/../../x", ""])
def test_path_that_leads_out_is_refused(tmp_path, path):
    chunk = Chunk(path, entry_at(Path(__file__)), 0, b"x")  # type: ignore[arg-type]  # this file is one

    with pytest.raises(OSError, match="Invalid argument"):
        Arrivals(tmp_path).take(chunk)


def test_part_whose_predecessor_is_missing_is_refused(tmp_path):
    source = tmp_path / "source"
    (source / "work").mkdir(parents=True)
    (source / "work" / "model.pt").write_bytes(b"0123456789")
    second = read_chunk(source, "work/model.pt", 5, 5)
    assert second is not None

    with pytest.raises(OSError, match="part of the file is missing"):
        Arrivals(tmp_path).take(second)

    assert not (tmp_path / "work" / "model.pt").exists()


def test_growing_file_is_appended_to_once_however_often_a_part_comes(tmp_path):
    source = tmp_path / "source"
    (source / "work").mkdir(parents=True)
    log = source / "work" / "log"
    log.write_bytes(b"one\n")
    arrivals = Arrivals(tmp_path)
    first = read_chunk(source, "work/log", 0, 100)
    log.write_bytes(b"one\ntwo\n")
    second = read_chunk(source, "work/log", 4, 100)

    for chunk in (first, first, second, first, second):
        assert chunk is not None
        arrivals.append(chunk)

    assert (tmp_path / "work" / "log").read_bytes() == b"one\ntwo\n"


def test_file_that_is_open_for_writing_is_left_out_where_only_closed_ones_are_wanted(tmp_path):
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "model.pt"

    with path.open("wb") as file:
        file.write(b"half")
        file.flush()
        assert read_chunk(tmp_path, "work/model.pt", 0, 100, closed=True) is None

    chunk = read_chunk(tmp_path, "work/model.pt", 0, 100, closed=True)
    assert chunk is not None
    assert chunk.data == b"half"
