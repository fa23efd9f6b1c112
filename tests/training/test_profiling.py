"""Steps of a running script are profiled when somebody asks, and their time is told apart."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training.profiling.timeline import PARTS, summarise, union, without

ENTRY = Path(__file__).resolve().parents[2] / "training/entry.py"
STEPPER, HELPER = 10, 11  # threads


def event(category: str, name: str, begin_ms: float, end_ms: float, thread: int = STEPPER) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": begin_ms * 1e3,
        "dur": (end_ms - begin_ms) * 1e3,
        "tid": thread,
    }


def parts_of(*events: dict[str, Any]) -> list[float]:
    """Milliseconds of 100: computes, copies, exchanges, waits for data, does nothing."""
    told = summarise({"traceEvents": [*events, {"ph": "M", "name": "process_name"}]}, 0.1, STEPPER)
    return [round(1e3 * float(told[name]), 3) for name in PARTS]


LOADS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_time_of_a_cpu_is_that_of_the_thread_that_steps():
    assert parts_of(
        event("user_annotation", LOADS, 0, 40),
        event("cpu_op", "aten::stack", 10, 20),  # of loading
        event("cpu_op", "aten::mm", 40, 70),
        event("cpu_op", "aten::copy_", 50, 55),
        event("cpu_op", "aten::mm", 40, 90, HELPER),
        event("user_annotation", "gloo:all_reduce", 60, 80, HELPER),  # ten of it while nothing computes
        event("user_annotation", "Optimizer.step#SGD.step", 70, 100),
    ) == [25, 5, 10, 40, 20]


def test_time_of_a_gpu_is_told_where_it_works_and_waiting_for_data_where_it_does_not():
    assert parts_of(
        event("kernel", "ampere_sgemm_128x64", 0, 40, 7),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 55, 8),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 50, 60, 9),
        event("user_annotation", LOADS, 55, 80),
        event("cpu_op", "aten::mm", 80, 100),
    ) == [40, 10, 10, 20, 20]


def test_spans_are_joined_and_cut_as_sets_of_time():
    assert union([(3, 4), (0, 2), (1, 3), (6, 7)]) == [(0, 4), (6, 7)]
    assert without([(0, 10)], [(2, 3), (3, 4), (9, 12)]) == [(0, 2), (4, 9)]
    assert without([(0, 1), (5, 6)], [(0, 9)]) == []


SCRIPT = """
import os, signal
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(400, 8), batch_size=4)
for step, batch in enumerate(loader):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if step in (5, 95):
        os.kill(os.getpid(), signal.SIGRTMIN + 11)
print("done", step)
"""


def profile(folder: Path, script: str, **environment: str) -> tuple[str, list[dict[str, Any]]]:
    """Run a script as a rank; its log and the lines of its metrics file."""
    for name in ("logs", "errors", "finished", "output"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    subprocess.run(
        [sys.executable, "-u", str(ENTRY), "train.py"],
        cwd=folder,
        env={
            "BERTH_ATTEMPT_FOLDER": str(folder),
            "BERTH_METRICS_FILE": str(folder / "metrics.jsonl"),
            "BERTH_OUTPUT_DIR": str(folder / "output"),
            "LANG": "C.UTF-8",
            "RANK": "0",
            **environment,
        },
        check=False,
    )
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    rank = environment.get("RANK", "0")
    return (folder / f"logs/rank{rank}.log").read_text(), [json.loads(line) for line in lines]


@pytest.mark.slow
def test_an_unchanged_script_is_profiled_whenever_asked_and_also_at_its_end(tmp_path):
    log, lines = profile(tmp_path, SCRIPT)

    assert log.splitlines() == ["done 99"]  # nothing of Kineto's
    assert [(told["event"], told["steps"], told["device"]) for told in lines] == [
        ("profile", 10, "cpu"),
        ("profile", 3, "cpu"),
    ]
    for told in lines:
        assert sum(float(told[name]) for name in PARTS) == pytest.approx(told["wall_s"], rel=0.01)
        assert told["compute_s"] > 0
        assert told["data_s"] > 0
        assert (tmp_path / "output" / told["trace"]).read_bytes().startswith(b"\x1f\x8b")


# A torch whose profiler is taken; the script steps twice after it was asked.
TORCH = {
    "__init__": "from torch.optim import optimizer\n",
    "cuda": "def is_available():\n    return False\n",
    "optim/__init__": "",
    "optim/optimizer": "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n",
    "profiler": "class ProfilerActivity:\n    CPU = CUDA = 0\n\n"
    "class profile:\n    def __init__(self, activities):\n        raise RuntimeError('it runs already')\n",
}
ASKS = """
import os, signal
import torch, torch.cuda
print("hears", callable(signal.getsignal(45)))
if callable(signal.getsignal(45)):
    os.kill(os.getpid(), 45)
for _ in range(2):
    for hook in torch.optim.optimizer.hooks:
        hook(object(), (), {})
print("done")
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    for name, text in TORCH.items():
        path = tmp_path / f"torch/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_script_that_profiles_itself_goes_on_and_the_refusal_is_told(stand_in):
    log, lines = profile(stand_in, ASKS)

    assert log.splitlines() == ["hears True", "done"]
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("profile_failed", "RuntimeError: it runs already")
    ]


@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {"PROFILE_ON_REQUEST": "off"}),
        ("", {"RANK": "1"}),
        ("import signal\nsignal.signal(45, signal.SIG_IGN)\n", {}),
    ],
)
def test_a_signal_is_left_alone_where_nobody_would_hear_it(stand_in, before, environment):
    log, lines = profile(stand_in, before + ASKS, **environment)

    assert "hears True" not in log
    assert lines == []
