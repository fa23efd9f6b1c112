"""Test files are rewritten once for all workers."""

import os
import subprocess
import sys
from pathlib import Path

from tests.tools import rewritten

FAILS = "def test_sums():\n    two = 2\n    assert two + 1 == 4\n"


def run_tests(folder: Path) -> str:
    """What pytest says of a folder; it writes no bytecode, and tells which kept forms it took."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--debug", "-p", "no:cacheprovider", "-c", os.devnull, folder],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + (folder / "pytestdebug.log").read_text()


def test_pytest_takes_what_was_kept_and_still_explains_a_failure(tmp_path):
    (tmp_path / "test_sums.py").write_text(FAILS)

    rewritten.keep_all(tmp_path)
    said = run_tests(tmp_path)

    assert "found cached rewritten pyc for" in said
    assert "rewriting PosixPath" not in said
    assert "assert (2 + 1) == 4" in said


def test_a_file_with_an_error_is_left_to_pytest(tmp_path):
    (tmp_path / "test_broken.py").write_text("def test_(:\n")

    rewritten.keep_all(tmp_path)

    assert "SyntaxError" in run_tests(tmp_path)


def test_a_file_that_changed_is_rewritten_again(tmp_path):
    file = tmp_path / "test_sums.py"
    file.write_text(FAILS)
    rewritten.keep_all(tmp_path)
    kept = rewritten.kept_at(file)
    before = kept.read_bytes()

    file.write_text(FAILS.replace("4", "5"))
    rewritten.keep_all(tmp_path)

    assert kept.read_bytes() != before
    assert "assert (2 + 1) == 5" in run_tests(tmp_path)
