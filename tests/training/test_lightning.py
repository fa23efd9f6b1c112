"""Modules written for PyTorch Lightning train as they are; with Lightning installed, on its own base class."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.training.conftest import Lines
from tests.training.started import run_cases
from training import TrainConfig, Trainer
from training.config import ConfigError
from training.model.batches import BatchError
from training.model.lightning import is_lightning
from training.report import Reporter

if find_spec("lightning"):
    from lightning import LightningModule as Base
else:

    class Base(nn.Module):  # type: ignore[no-redef]  # what stands in for it
        """The part of a ``LightningModule`` that these modules use."""

        trainer: Any = None

        def log(self, name: str, value: Any, **options: Any) -> None:
            raise AssertionError("the trainer replaces this")

        @property
        def current_epoch(self) -> int:
            return int(self.trainer.current_epoch)


class Line(Base):  # type: ignore[misc]  # Lightning may be absent
    """Learns a sum; notes the hooks that are called."""

    def __init__(self, schedule: Any = None) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.schedule = schedule
        self.calls: list[str] = []
        self.indices: list[int] = []
        self.kept = 0

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self(inputs), targets)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("half", loss / 2)
        self.indices.append(batch_idx)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_loss", nn.functional.mse_loss(self(inputs), targets))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return optimizer if self.schedule is None else self.schedule(optimizer)

    def on_train_epoch_start(self) -> None:
        self.calls.append(f"epoch {self.current_epoch}")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        assert self.net.weight.grad is not None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.calls.append(f"batch {batch_idx}")

    def on_validation_epoch_end(self) -> None:
        assert not self.training
        self.calls.append("validated")

    def on_train_epoch_end(self) -> None:
        self.kept += 1
        self.calls.append("epoch end")

    def on_train_end(self) -> None:
        self.calls.append("end")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["kept"] = self.kept

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.kept = checkpoint["kept"]


def make_data(samples: int = 20) -> TensorDataset:
    inputs = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def fit(reporter: Reporter, module: Any, **settings: Any) -> Any:
    settings = {"batch_size": 8, "checkpoint_every": None, "resume": False, **settings}
    return Trainer(TrainConfig(**settings), reporter=reporter).fit(module, make_data(), make_data(10))


def test_module_trains_with_its_own_steps_optimizer_and_hooks(reporter: Reporter, lines: Lines) -> None:
    module = Line()
    assert is_lightning(module)
    assert not is_lightning(nn.Linear(1, 1))

    state = fit(reporter, module, epochs=2)

    epoch = ["batch 0", "batch 1", "batch 2", "validated", "epoch end"]
    assert module.calls == ["setup fit", "epoch 0", *epoch, "epoch 1", *epoch, "end"]
    assert module.indices[-6:] == [0, 1, 2] * 2
    assert isinstance(state.optimizer, torch.optim.SGD)
    losses = [line["loss"] for line in lines() if "loss" in line]
    assert losses[-1] < losses[0]


def test_logged_values_are_metrics_of_steps_and_epochs(reporter: Reporter, lines: Lines) -> None:
    state = fit(reporter, Line(), learning_rate=1)

    steps = [line for line in lines() if "train_loss_step" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["half"] == pytest.approx(line["loss"] / 2, rel=1e-5) for line in steps)
    (epoch,) = [line for line in lines() if "train_loss_epoch" in line]
    assert epoch["train_loss_epoch"] == pytest.approx(
        (8 * steps[0]["loss"] + 8 * steps[1]["loss"] + 8 * steps[2]["loss"]) / 24, rel=1e-5
    )
    assert epoch["val_loss"] == state.metrics["val_loss"]
    module, data = state.model, make_data(10)
    with torch.no_grad():
        expected = nn.functional.mse_loss(module(data.tensors[0]), data.tensors[1])
    assert state.metrics["val_loss"] == pytest.approx(float(expected), rel=1e-5)


def by_step(optimizer: Any) -> Any:
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def by_epoch(optimizer: Any) -> Any:
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def by_metric(optimizer: Any) -> Any:
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=0, threshold=1e9, threshold_mode="abs"
    )
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


@pytest.mark.parametrize(("schedule", "halvings"), [(by_step, 12), (by_epoch, 4), (by_metric, 3)])
def test_schedule_steps_as_configured_also_after_a_resume(
    schedule: Any, halvings: int, reporter: Reporter
) -> None:
    for steps in (5, 12):
        module = Line(schedule)
        state = fit(reporter, module, epochs=4, max_steps=steps, checkpoint_dir="c", resume=True)

    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**halvings)
    assert module.kept == 4  # its own part of the checkpoint was given back


def test_modules_that_bring_their_own_loop_are_refused(reporter: Reporter) -> None:
    class TwoOptimizers(Line):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters()) for _ in range(2)]

    class Manual(Line):
        automatic_optimization = False

    class OwnStep(Line):
        def optimizer_step(self, *_: Any, **__: Any) -> None: ...

    class NoLoss(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None

    with pytest.raises(
        ConfigError, match="returned 2 optimizers; Trainer steps exactly one: run it as it is"
    ):
        fit(reporter, TwoOptimizers())
    manual = Line()
    manual.automatic_optimization = False
    with pytest.raises(ConfigError, match="Line steps its optimizers itself"):
        fit(reporter, manual)
    with pytest.raises(
        ConfigError, match=r"OwnStep replaces optimizer_step\(\), which Trainer does not call"
    ):
        fit(reporter, OwnStep())
    with pytest.raises(BatchError, match=r"training_step\(\) returned no loss"):
        fit(reporter, NoLoss())


def test_metric_of_a_module_is_computed_over_the_epoch(reporter: Reporter) -> None:
    class Largest(nn.Module):
        """A metric with the methods of torchmetrics."""

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[float] = []

        def update(self, outputs: Tensor, targets: Tensor) -> None:
            self.seen.append(float(targets.max()))

        def compute(self) -> Tensor:
            return torch.tensor(max(self.seen))

        def reset(self) -> None:
            self.seen = []

    class Measured(Line):
        def __init__(self) -> None:
            super().__init__()
            self.largest = Largest()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.largest.update(self(batch[0]), batch[1])
            self.log("val_largest", self.largest)

    state = fit(reporter, Measured())

    assert state.metrics["val_largest"] == pytest.approx(float(make_data(10).tensors[1].max()))
    assert state.metrics.get("val_loss") is None


@pytest.mark.slow
def test_module_on_two_ranks_has_the_weights_of_one_rank(tmp_path: Path) -> None:
    run_cases(2, tmp_path, "ddp", "fsdp", "zero1", script="lightning_runs.py")

    alone = torch.load(tmp_path / "alone.pt")
    for strategy in ("ddp", "fsdp", "zero1"):
        together = torch.load(tmp_path / f"{strategy}.pt")
        assert together["val_loss"] == pytest.approx(alone["val_loss"], rel=1e-5)
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(together["weights"][name], weight, rtol=1e-5, atol=1e-6)
