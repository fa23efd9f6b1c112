"""Tests signal only processes that they started."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BY_NAME = re.compile(r"\b(pkill|killall|pgrep)\s+-")  # a call in a shell, with its options


def test_no_test_example_or_benchmark_signals_processes_by_their_names() -> None:
    """A name reaches the processes of every other test on the machine, too."""
    files = [
        path
        for folder in ("tests", "benchmarks", "examples", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sh", ".js", ".yml"} and "node_modules" not in path.parts
    ]

    assert len(files) > 100
    assert [str(path.relative_to(ROOT)) for path in files if BY_NAME.search(path.read_text())] == []
