"""What the tests of the training library share."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.started import PATIENCE_S
from training.launch import WarmLauncher, WarmRun
from training.report import Reporter

REPOSITORY = Path(__file__).parents[2]
Lines = Callable[[], list[dict[str, Any]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests here that start processes wait for them as long as ``PATIENCE_S``, twice at most."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(2 * PATIENCE_S + 60))


@pytest.fixture(autouse=True)
def outside_berth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test runs outside Berth and torchrun, in a folder of its own."""
    for name in list(os.environ):
        if name.startswith("BERTH_") or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmLauncher]:
    """One process with torch in it, which becomes the ranks of many tests: each import costs 2 s of a core."""
    warm = WarmLauncher(socket_path=tmp_path_factory.mktemp("warm") / "s")
    yield warm
    warm.stop()


@pytest.fixture
def start_ranks(launcher: WarmLauncher, tmp_path: Path) -> Iterator[Callable[..., WarmRun]]:
    """Start the ranks of a script in this test's folder, which write to ``output`` there; killed at the end."""
    started: list[WarmRun] = []

    def start(script: Path, *arguments: object, ranks: int = 1, **environment: str) -> WarmRun:
        with (tmp_path / "output").open("ab") as output:
            run = launcher.start(
                script, [*map(str, arguments)], ranks=ranks, cwd=tmp_path, output=output,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **environment},
            )  # fmt: skip
        started.append(run)
        return run

    yield start
    for run in started:
        run.kill()


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Reporter]:
    made = Reporter(tmp_path / "metrics.jsonl")
    yield made
    made.close()


@pytest.fixture
def lines(tmp_path: Path, reporter: Reporter) -> Lines:
    """What the reporter has written so far."""

    def read() -> list[dict[str, Any]]:
        reporter.flush()
        file = tmp_path / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    return read


@pytest.fixture
def start_python(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python on a source text or a file, in this test's folder; killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str | Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        what = [str(code)] if isinstance(code, Path) else ["-c", code]
        process = subprocess.Popen(
            [sys.executable, *what, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
