"""Whatever a job made of its folders, they are walked and removed."""

import os
from pathlib import Path

from orchestrator.store.files.untrusted import remove_tree, walk_tree

DEEP = 2_500  # beyond Python's recursion, and beyond the longest path of the kernel


def make_deep(top: Path) -> None:
    before = Path.cwd()
    try:
        os.chdir(top)
        for _ in range(DEEP):
            Path("d").mkdir()
            os.chdir("d")
        Path("bottom").touch()
    finally:
        os.chdir(before)


def test_a_deep_folder_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    top, outside = tmp_path / "job", tmp_path / "outside"
    (top / "shut/inner").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").touch()
    (top / "link").symlink_to(outside)
    (top / "shut/inner/file").touch()
    (top / "shut").chmod(0o500)
    make_deep(top)

    remove_tree(top)
    remove_tree(top)  # absent is fine

    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()


def test_a_link_to_a_folder_is_no_folder_to_remove(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")

    remove_tree(tmp_path / "link")

    assert (tmp_path / "kept").is_dir()


def test_a_deep_folder_is_walked_as_far_as_paths_go(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    (tmp_path / "a/link").symlink_to("/etc")
    make_deep(tmp_path / "a/b")

    found = list(walk_tree(tmp_path))

    assert found[0] == (str(tmp_path), ["a"], [])
    assert (found[1][1], sorted(found[1][2])) == (["b"], ["file", "link"])
    assert len(found) > 1_500
    remove_tree(tmp_path / "a")
