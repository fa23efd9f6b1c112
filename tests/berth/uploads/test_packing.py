"""What of a folder is uploaded, and which commit it is known by."""

import os
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from berth.client import BerthError, pack_folder
from berth.shared.job_fields import DIFF_FILE
from berth.uploads.git_state import MOST_DIFF_BYTES, read_state
from berth.uploads.packing import links_left_out
from berth.uploads.pushing import _files


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def git(folder: Path, *words: str) -> str:
    me = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", "-C", folder, *me, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write(tmp_path, {"train.py": "print(1)\n", "lib/a.py": "", "secret.txt": "old"})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def packed(folder: Path, *needed: str) -> dict[str, str]:
    with zipfile.ZipFile(BytesIO(pack_folder(folder, needed=needed))) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_links_that_are_left_out_are_named_but_for_ignored_ones(tmp_path):
    write(
        tmp_path,
        {
            "shared/x.py": "", "set.csv": "1", "code/train.py": "", "code/runs/1/a.txt": "",
            "code/.gitignore": "ignored\ndata/\n",
        },
    )  # fmt: skip
    code = tmp_path / "code"
    for link, target in [
        ("lib", tmp_path / "shared"),
        ("runs/set.csv", tmp_path / "set.csv"),
        ("ignored", tmp_path / "shared"),
        ("data", tmp_path / "shared"),
        (".hidden", tmp_path / "set.csv"),
        ("runs/latest", code / "runs/1"),
        ("gone.csv", tmp_path / "no.csv"),
    ]:
        (code / link).symlink_to(target)

    assert links_left_out(code) == ["lib", "runs/set.csv"]
    assert list(packed(code)) == ["train.py", "runs/1/a.txt"]


def test_ignore_files_of_every_folder_leave_files_out(tmp_path):
    write(
        tmp_path,
        {
            ".gitignore": "*.pt\n/data/\n!keep.pt\n",
            "src/.gitignore": "build\n",
            ".berthignore": "notes.md\n",
            "train.py": "",
            "a.pt": "",
            "keep.pt": "",
            "data/x.bin": "",
            "src/data/y.py": "",
            "src/build/z.o": "",
            "notes.md": "",
        },
    )

    assert list(packed(tmp_path)) == ["keep.pt", "train.py", "src/data/y.py"]


def test_berthignore_takes_in_again_what_git_ignores(tmp_path):
    write(
        tmp_path, {".gitignore": "*.csv\n", ".berthignore": "!small.csv\n", "small.csv": "1", "big.csv": "1"}
    )

    assert list(packed(tmp_path)) == ["small.csv"]


def test_folder_inside_a_repository_keeps_to_the_rules_above_it(repository):
    write(
        repository,
        {".gitignore": "*.log\n", ".git/info/exclude": "mine.py\n", "lib/b.log": "", "lib/mine.py": ""},
    )

    assert list(packed(repository / "lib")) == ["a.py"]


def test_rules_above_a_folder_that_is_no_repository_do_not_count(tmp_path):
    write(tmp_path, {".gitignore": "*.py\n", "code/train.py": ""})

    assert list(packed(tmp_path / "code")) == ["train.py"]


def test_rules_that_leave_nothing_are_an_error(tmp_path):
    write(tmp_path, {".gitignore": "*\n", "train.py": ""})

    with pytest.raises(BerthError, match=r"Nothing of .* would be uploaded.*leave out every file"):
        pack_folder(tmp_path)


def test_rules_that_leave_out_the_script_are_an_error(tmp_path):
    write(tmp_path, {".berthignore": "src\n", "src/train.py": "", "a.py": ""})

    with pytest.raises(BerthError, match=r"starts with src/train\.py, which .* leaves out.*!/src/train\.py"):
        pack_folder(tmp_path, needed=["./src/train.py"])
    assert list(packed(tmp_path, "missing.py")) == ["a.py"]


def test_changes_since_the_commit_go_with_the_code_but_not_those_of_ignored_files(repository):
    write(
        repository,
        {".berthignore": "secret.txt\n", "train.py": "print(2)\n", "secret.txt": "new", "more.py": ""},
    )
    (repository / "lib/a.py").unlink()

    files = packed(repository)

    assert list(files) == ["more.py", "train.py", DIFF_FILE]
    assert "-print(1)\n+print(2)\n" in files[DIFF_FILE]
    assert "deleted file mode 100644" in files[DIFF_FILE]
    assert "secret" not in files[DIFF_FILE]


def test_long_changes_are_cut_with_a_note(repository):
    write(repository, {"train.py": "x = 1\n" * 100_000})

    diff = packed(repository)[DIFF_FILE]

    assert len(diff) < MOST_DIFF_BYTES + 100
    assert diff.splitlines()[-1].startswith("# The rest was left out:")


def test_state_names_commit_branch_and_changes_of_the_code_itself(repository):
    commit = git(repository, "rev-parse", "HEAD")
    assert read_state(repository) == {"commit": commit, "branch": "main", "dirty": False}

    write(repository, {"lib/new.py": ""})
    assert (read_state(repository) or {"dirty": False})["dirty"]
    assert not (read_state(repository / "train.py") or {"dirty": True})["dirty"]

    git(repository, "checkout", "-q", "--detach")
    assert "branch" not in (read_state(repository) or {})


def test_code_that_is_not_in_the_commit_is_not_called_unchanged_whatever_hides_it_in_the_status(repository):
    write(repository, {".gitignore": "scratch/\n", "scratch/try.py": "", "tr[a]in.py": ""})
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "more")
    write(repository, {"new.py": ""})
    git(repository, "config", "status.showUntrackedFiles", "no")

    for code in (".", "new.py", "scratch", "scratch/try.py"):
        assert (read_state(repository / code) or {"dirty": False})["dirty"], code
    write(repository, {"train.py": "changed\n"})
    assert not (read_state(repository / "tr[a]in.py") or {"dirty": True})["dirty"]


def test_state_is_of_the_folder_itself_within_a_hook_of_another_repository(
    repository, tmp_path_factory, monkeypatch
):
    """A submit of a hook, or of ``git rebase --exec``."""
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))

    state = read_state(repository)
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert state == {"commit": git(repository, "rev-parse", "HEAD"), "branch": "main", "dirty": False}


def test_code_that_git_cannot_compare_is_not_called_unchanged(repository):
    (repository / ".git" / "index").write_bytes(b"damaged")

    assert (read_state(repository) or {"dirty": False})["dirty"]


def test_state_is_unknown_outside_of_a_repository_and_before_its_first_commit(tmp_path):
    assert read_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert read_state(tmp_path) is None


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="nobody but root becomes somebody else")


@contextmanager
def as_nobody(top: Path) -> Iterator[None]:
    """Be a user who owns none of the files; the folders above them let everybody in."""
    modes = {folder: folder.stat().st_mode for folder in [top, *top.parents]}
    for folder, mode in modes.items():
        folder.chmod(mode | 0o011)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder, mode in modes.items():
            folder.chmod(mode)


@needs_root
@pytest.mark.parametrize("locked", ["secret.py", "data"])
def test_file_or_folder_that_cannot_be_read_is_named_with_the_way_out(tmp_path, locked):
    tmp_path.chmod(0o755)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "secret.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / locked).chmod(0)

    with as_nobody(tmp_path), pytest.raises(BerthError, match=rf"{locked} cannot be read: .*\.berthignore"):
        pack_folder(tmp_path)

    (tmp_path / ".berthignore").write_text(f"{locked}\n")
    with as_nobody(tmp_path):
        assert "train.py" in zipfile.ZipFile(BytesIO(pack_folder(tmp_path))).namelist()


@needs_root
def test_dataset_is_not_pushed_without_a_folder_that_cannot_be_read(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "locked").mkdir(mode=0)

    with as_nobody(tmp_path), pytest.raises(OSError, match="Permission denied"):
        list(_files(tmp_path))


def test_name_that_is_not_utf_8_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("")

    with pytest.raises(BerthError, match=r"The name of 'caf\\udce9\.txt' is not UTF-8"):
        pack_folder(tmp_path)

    (tmp_path / ".berthignore").write_text("caf*\n")
    assert zipfile.ZipFile(BytesIO(pack_folder(tmp_path))).namelist() == ["train.py"]
