"""A run of several workers ends with what its files cost."""

import re
import subprocess
import sys
from pathlib import Path

from tests.tools import cost

CONFTEST = """
from tests.tools import cost

def pytest_configure(config):
    cost.watch(config)
"""
TEST = """
import subprocess, sys

def test_that_lets_another_work():
    code = "import time\\nwhile time.process_time() < {seconds}: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_the_dearest_file_of_all_workers_comes_first(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_cheap.py").write_text(TEST.format(seconds=0.05))
    (tmp_path / "test_dear.py").write_text(TEST.format(seconds=0.6))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider",
         "-c", "/dev/null", "--rootdir", tmp_path, tmp_path],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip

    dear, cheap = re.findall(r"([\d.]+) s (\S+\.py)", done.stdout)
    assert [dear[1], cheap[1]] == ["test_dear.py", "test_cheap.py"]
    assert float(dear[0]) >= 0.6, "a process that a test waits for counts"


def test_where_nothing_was_counted_nothing_is_said() -> None:
    assert cost.lines({}) == []
