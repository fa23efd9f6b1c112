"""What a training does while no checkpoint can be written."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.training.started import PATIENCE_S
from training import TrainConfig, Trainer
from training.loop import saving
from training.report import Reporter
from training.trainer import Stopped

Lines = Callable[[], list[dict[str, Any]]]


def fit(reporter: Reporter, folder: Path, **settings: Any) -> int:
    """Ten steps, each with a save; the step that was reached."""
    data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    config = TrainConfig(batch_size=4, checkpoint_every=1, checkpoint_dir=str(folder), **settings)
    return Trainer(config, reporter=reporter).fit(nn.Linear(4, 1), data).step


def when_told(lines: Lines, kind: str, act: Callable[[], object]) -> threading.Thread:
    def wait() -> None:
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and not any(line.get("event") == kind for line in lines()):
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file where the folder of the checkpoints should be."""
    monkeypatch.setattr(saving, "RETRY_EVERY_S", 0.05)
    path = tmp_path / "checkpoints"
    path.touch()
    return path


def events(lines: Lines, *kinds: str) -> list[dict[str, Any]]:
    return [line for line in lines() if line.get("event") in kinds]


def test_f50_training_pauses_after_three_failed_saves_until_one_succeeds(
    reporter: Reporter, lines: Lines, blocked: Path
) -> None:
    freeing = when_told(lines, "paused", blocked.unlink)

    assert fit(reporter, blocked) == 10

    freeing.join()
    paused, went_on = events(lines, "paused", "went_on")
    # The newest failure may still be on its way when the next save begins.
    assert (paused["step"], paused["failures"]) in ((4, 3), (5, 3), (5, 4))
    assert went_on["step"] == paused["step"]
    assert "File exists" in paused["reason"] or "Not a directory" in paused["reason"]
    assert [path.name for path in sorted(blocked.iterdir())] == ["1-10", "1-8", "1-9"]
    assert [line["step"] for line in lines() if "loss" in line] == list(range(1, 11))


def test_f50_paused_training_can_be_stopped(reporter: Reporter, lines: Lines, blocked: Path) -> None:
    stopping = when_told(lines, "paused", lambda: os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(Stopped):
        fit(reporter, blocked)

    stopping.join()
    assert [line["event"] for line in events(lines, "paused", "went_on")] == ["paused"]


def test_f50_training_without_the_pause_setting_continues_to_its_end(
    reporter: Reporter, lines: Lines, blocked: Path
) -> None:
    assert fit(reporter, blocked, pause_after_failed_saves=0) == 10

    failed = events(lines, "checkpoint_failed")
    assert [line["step"] for line in failed] == [*range(1, 11), 10]  # the end saves again
    assert not events(lines, "paused")
