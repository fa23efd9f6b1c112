"""A change leads to the tests nearest to it."""

import subprocess
from pathlib import Path

import pytest

from tests.tools.choice import changed_files, files_for, room_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit on main, on a branch of its own."""
    (tmp_path / "kept.py").write_text("")
    (tmp_path / "changed.py").write_text("")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    git(tmp_path, "checkout", "-q", "-b", "work")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def test_committed_uncommitted_and_new_files_of_a_branch_have_changed(repository):
    (repository / "committed.py").write_text("")
    git(repository, "add", ".")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "second")
    (repository / "changed.py").write_text("1")
    (repository / "new.py").write_text("")

    assert changed_files(repository) == ["changed.py", "committed.py", "new.py"]


def test_a_changed_test_file_comes_first(tmp_path):
    assert (
        files_for(["tests/store/test_trees.py", "orchestrator/store/files/untrusted.py"])[0]
        == "tests/store/test_trees.py"
    )


def test_files_that_import_a_changed_module_come_before_the_rest_of_its_room():
    tests = files_for(["orchestrator/store/bundles/bundles.py"])

    near, far = tests.index("tests/store/test_bundles.py"), tests.index("tests/store/test_log_blocks.py")
    assert near < far
    assert "tests/jobs/test_launcher.py" in tests or "tests/api/test_submit.py" in tests


@pytest.mark.parametrize(
    ("file", "room"),
    [
        ("orchestrator/store/bundles/bundles.py", "tests/store"),
        ("orchestrator/scheduler/core/decide.py", "tests/scheduler/core"),
        ("orchestrator/scheduler/passes/passes.py", "tests/scheduler"),
        ("templates/job.html", "tests/dashboard"),
        ("docs/tutorial.md", "tests/deploy"),
        ("tests/supervisor/conftest.py", "tests/supervisor"),
        ("tests/conftest.py", None),
        ("LICENSE", None),
    ],
)
def test_each_file_has_the_tests_of_its_room(file, room):
    assert room_of(file) == room


def test_a_text_file_leads_to_the_tests_that_name_it():
    assert "tests/deploy/test_compose.py" in files_for(["docker-compose.yml"])


def test_what_every_test_rests_on_concerns_all_of_them():
    assert len(files_for(["tests/conftest.py"])) == len(list((ROOT / "tests").rglob("test_*.py")))
