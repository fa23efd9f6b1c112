"""Tests that are not marked ``gpu`` see no GPU, whatever the machine has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import lacking
from tests.devices.stub import build_stub, stub_environment
from tests.tools.no_gpu import require_one_worker, wants_gpu

REPOSITORY = Path(__file__).parents[2]
COUNTS = """
import pynvml
try:
    pynvml.nvmlInit()
    print(pynvml.nvmlDeviceGetCount())
except pynvml.NVMLError as error:
    print(error)
"""
HIDES = f"""
import os, subprocess, sys
from tests.tools import no_gpu
no_gpu.hide()
COUNTS = {COUNTS!r}
exec(COUNTS)
subprocess.run([sys.executable, "-c", COUNTS], check=True)
print(repr(os.environ["CUDA_VISIBLE_DEVICES"]))
"""


@pytest.mark.parametrize(
    ("marks", "wanted"),
    [("gpu", True), ("gpu and slow", True), ("", False), ("not gpu", False), ("slow", False),
     ("gpu or slow", False), ("not slow", False)],
)  # fmt: skip
def test_gpus_are_seen_where_only_tests_marked_gpu_run(marks: str, *, wanted: bool) -> None:
    assert wants_gpu(marks) is wanted


def test_tests_on_the_gpu_are_refused_with_several_workers() -> None:
    require_one_worker("gpu", 1)
    require_one_worker("not gpu", 4)

    with pytest.raises(pytest.UsageError, match="one after the other; leave out -n 4"):
        require_one_worker("gpu", 4)


def test_this_session_sees_no_gpu(pytestconfig: pytest.Config) -> None:
    assert not wants_gpu(pytestconfig.getoption("markexpr"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.slow
def test_a_machines_driver_is_neither_opened_here_nor_by_a_child(tmp_path: Path) -> None:
    try:
        library = build_stub(tmp_path)
    except FileNotFoundError as error:
        lacking(str(error))
    machine = {
        name: value
        for name, value in stub_environment(library).items()
        if name not in ("TESTS_WITHOUT_DRIVER", "CUDA_VISIBLE_DEVICES")
    } | {"PYTHONPATH": str(REPOSITORY)}

    def run(code: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=machine, capture_output=True, text=True, check=True, cwd=REPOSITORY,
        )  # fmt: skip
        return done.stdout.splitlines()

    assert run(COUNTS) == ["8"]
    assert sorted(run(HIDES)) == ["''", "NVML Shared Library Not Found", "NVML Shared Library Not Found"]
