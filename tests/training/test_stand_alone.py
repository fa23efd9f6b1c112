"""The page for people without a server: its program runs as it stands, on one device and on two."""

import importlib
import os
import re
from pathlib import Path

import pytest

from tests.training.started import PATIENCE_S
from training.checkpoint import store
from training.launch import WarmLauncher

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "how-to" / "train-without-a-server.md"


def program() -> str:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_program_has_ten_lines() -> None:
    assert len([line for line in program().splitlines() if line.strip()]) <= 10


@pytest.mark.slow
def test_the_program_runs_on_one_device_and_on_two_and_resumes(
    launcher: WarmLauncher, tmp_path: Path
) -> None:
    (tmp_path / "learn.py").write_text(program())
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}

    for ranks in (2, 1):
        with (tmp_path / f"output{ranks}").open("wb") as file:
            started = launcher.start(
                tmp_path / "learn.py", ranks=ranks, cwd=tmp_path, env=environment, output=file
            )
            assert started.wait(PATIENCE_S) == [0] * ranks, (tmp_path / f"output{ranks}").read_text()

    places = store.list_places(tmp_path / "checkpoints")
    assert [(place.attempt, place.step) for place in places] == [(2, 24), (1, 24)]
    assert "step 24 loss" in (tmp_path / "output2").read_text()
    assert "step" not in (tmp_path / "output1").read_text()  # nothing was left to do


def test_every_name_on_the_page_exists() -> None:
    names = re.findall(r"`?(training\.[a-z_.]+[A-Za-z_]*)", PAGE.read_text())

    assert len(names) >= 8
    for name in names:
        assert resolve(name.rstrip(".")), name


def resolve(name: str) -> bool:
    """Whether it is a module, or something in one."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, rest = name.rpartition(".")
        return hasattr(importlib.import_module(module), rest)
    return True


@pytest.mark.parametrize(
    "name",
    [
        "training.data_cache.OnDisk",
        "training.prefetch.DevicePrefetcher",
        "training.plan.partition.main",
        "training.plan.placement.place",
    ],
)
def test_former_names_of_moved_modules_still_import(name: str) -> None:
    assert resolve(name)
