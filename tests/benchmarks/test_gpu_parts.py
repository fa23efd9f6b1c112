"""How ``make gpu`` runs its parts: each in a process with a limit, of which nothing is left afterwards."""

import time
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu import PARTS, Part, files_of_gpu_tests, run_part
from tests.waiting import PATIENCE_S

# A child in a session of its own, as a job's supervisor is, which keeps the output open.
LEAVES_A_CHILD = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
Path(sys.argv[1]).write_text(str(child.pid))
print("started", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("lasts_s", "ended"), [(0, "passed"), (600, "timed out")], ids=["ends", "hangs"])
def test_part_ends_within_its_limit_with_all_that_it_started(
    lasts_s: int, ended: str, tmp_path: Path
) -> None:
    part = Part("hanging", 0, ("-c", LEAVES_A_CHILD, str(tmp_path / "child"), str(lasts_s)))
    began_s = time.monotonic()

    record = run_part(part, 10, tmp_path, {})

    assert (record["ended"], record["output"]) == (ended, "started\n")
    assert time.monotonic() - began_s < PATIENCE_S
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


@pytest.mark.slow
def test_part_that_fails_says_so_and_with_what(tmp_path: Path) -> None:
    record = run_part(Part("failing", 0, ("-c", "raise SystemExit('no luck')")), 60, tmp_path, {})

    assert (record["ended"], record["output"]) == ("failed", "no luck\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "ended", "figures"),
    [
        ("def test_a(): pass\ndef test_b(): pytest.skip('no GPU')", "passed", {"passed": 1, "skipped": 1}),
        ("def test_a(): pass\ndef test_b(): assert False", "failed", {"passed": 1, "failed": 1}),
        ("def test_b(): pytest.skip('no GPU')", "failed", {"skipped": 1}),
    ],
    ids=["some skipped", "one failed", "all skipped"],
)
def test_part_of_tests_counts_them_and_fails_where_none_was_seen(
    tests: str, ended: str, figures: dict[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(f"import pytest\n{tests}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:django",
        "-c",
        str(tmp_path / "pytest.ini"),
    )

    record = run_part(Part("tests", 0, (*command, str(file))), 120, tmp_path, {})

    assert (record["ended"], record["figures"]) == (ended, figures), record["output"]


def test_only_files_with_tests_marked_gpu_are_collected(tmp_path: Path) -> None:
    for name, text in {
        "a/test_whole.py": "pytestmark = pytest.mark.gpu\n",
        "a/test_single.py": "@pytest.mark.gpu\ndef test_it(): ...\n",
        "a/test_several.py": "pytestmark = [pytest.mark.slow, pytest.mark.gpu]\n",
        "a/test_other.py": "# pytest.mark.gpu is for others\n",
        "a/gpu.py": "pytestmark = pytest.mark.gpu\n",
    }.items():
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert files_of_gpu_tests(tmp_path) == [
        "tests/a/test_several.py",
        "tests/a/test_single.py",
        "tests/a/test_whole.py",
    ]


def test_each_file_with_tests_marked_gpu_is_in_one_part() -> None:
    in_parts = [word for part in PARTS for word in part.command if word.startswith("tests/")]

    assert sorted(in_parts) == files_of_gpu_tests()
    assert len(in_parts) > 3
