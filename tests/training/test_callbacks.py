"""Callbacks are called around everything that happens, keep their state, and may come from other packages."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.training.conftest import Lines
from training import TrainConfig, Trainer
from training.callbacks import BestWeights, Callback, EarlyStopping
from training.config import ConfigError
from training.config.extensions import registered
from training.report import Reporter
from training.state import TrainState
from training.strategies.single import Single


def make_data(samples: int = 16) -> TensorDataset:
    inputs = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def fit(
    reporter: Reporter, callbacks: list[Any] | None = None, val: bool = True, **settings: Any
) -> TrainState:
    options = {name: settings.pop(name) for name in ("metrics", "loss_fn") if name in settings}
    settings = {"batch_size": 8, "checkpoint_every": None, "learning_rate": 0.05, **settings}
    torch.manual_seed(0)
    return Trainer(TrainConfig(**settings), reporter=reporter).fit(
        nn.Linear(4, 1), make_data(), make_data(8) if val else None, callbacks=callbacks or [], **options
    )


class Notes(Callback):
    """Writes down each call; its state is the number of steps that it saw."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.steps = 0

    def before_training(self, state: TrainState) -> None:
        self.calls.append(f"training from {state.step}")

    def after_training(self, state: TrainState) -> None:
        self.calls.append("trained")

    def before_epoch(self, state: TrainState) -> None:
        self.calls.append("epoch")

    def after_epoch(self, state: TrainState, val_loss: float | None) -> bool | None:
        assert state.metrics["val_loss"] == val_loss
        self.calls.append("epoch end")
        return None

    def before_step(self, state: TrainState) -> None:
        self.calls.append(f"step {state.step}")

    def before_update(self, state: TrainState) -> None:
        assert all(each.grad is not None for each in state.model.parameters())

    def after_step(self, state: TrainState, metrics: Any) -> None:
        assert float(metrics["loss"]) > 0
        self.steps += 1
        self.calls.append(f"stepped {state.step}")

    def before_validation(self, state: TrainState) -> None:
        assert not state.model.training
        self.calls.append("validation")

    def after_validation(self, state: TrainState, metrics: Any) -> None:
        self.calls.append(", ".join(metrics))

    def before_save(self, state: TrainState) -> None:
        self.calls.append("save")

    def after_save(self, state: TrainState) -> None:
        self.calls.append("saved")

    def on_exception(self, state: TrainState, error: BaseException) -> None:
        self.calls.append(f"{error}")

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_callbacks_are_called_around_everything_in_order(reporter: Reporter) -> None:
    notes = Notes()

    fit(reporter, [notes])

    assert notes.calls == [
        "training from 0", "epoch", "step 0", "stepped 1", "step 1", "stepped 2", "validation", "val_loss",
        "epoch end", "save", "saved", "trained",
    ]  # fmt: skip


def test_callback_hears_of_the_error_that_ends_the_training(reporter: Reporter) -> None:
    notes = Notes()

    def fail(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        fit(reporter, [notes], loss_fn=fail)

    assert notes.calls == ["training from 0", "epoch", "step 0", "odd"]


def test_state_of_callbacks_continues_over_a_resume(reporter: Reporter) -> None:
    fit(reporter, [Notes(), Notes()], max_steps=3, epochs=9)
    again = [Notes(), Notes()]

    fit(reporter, again, max_steps=5, epochs=9, resume=True)

    assert [each.steps for each in again] == [5, 5]
    assert again[0].calls[0] == "training from 3"


def test_early_stopping_counts_over_resumes_and_by_any_metric(reporter: Reporter) -> None:
    settings: dict[str, Any] = {
        "metrics": {"constant": lambda outputs, targets: 1.0},
        "epochs": 20,
        "resume": True,
    }
    for steps, ended in ((4, 4), (20, 8)):  # the first epoch is the best, three more bring nothing
        stopping = EarlyStopping(3, monitor="val_constant", mode="max")
        assert fit(reporter, [stopping], max_steps=steps, **settings).step == ended

    assert (stopping.best, stopping.best_step) == (1.0, 2)


class Counted:
    """A metric with the methods of torchmetrics: the samples that it saw."""

    def __init__(self) -> None:
        self.samples = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        assert len(outputs) == len(targets)
        self.samples += len(outputs)

    def compute(self) -> Tensor:
        return torch.tensor(self.samples)

    def reset(self) -> None:
        self.samples = 0


def mean_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean()


def test_metrics_are_evaluated_over_all_samples_of_a_validation(reporter: Reporter, lines: Lines) -> None:
    state = fit(reporter, metrics=[Counted(), mean_error], epochs=2)

    assert state.metrics["val_counted"] == 8  # of one epoch
    assert sum("val_mean_error" in line for line in lines()) == 2
    values = Trainer(reporter=reporter).measure(state.model, make_data(8), {"error": mean_error})
    assert values["error"] == pytest.approx(state.metrics["val_mean_error"])
    assert values["loss"] == pytest.approx(state.metrics["val_loss"])


def test_things_that_are_no_metrics_are_refused_before_training(reporter: Reporter) -> None:
    with pytest.raises(ConfigError, match="metrics has 'accuracy', which is a float; a metric has update"):
        fit(reporter, metrics={"accuracy": 0.5})
    with pytest.raises(ConfigError, match="Two metrics have the same name; pass a dict"):
        fit(reporter, metrics=[Counted(), Counted()])


class Scripted(Callback):
    """Replaces the validation's metric by a given series."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def after_validation(self, state: TrainState, metrics: Any) -> None:
        state.metrics["score"] = self.values[state.step // 2 - 1]


@pytest.mark.parametrize(("mode", "steps"), [("max", [8, 4]), ("min", [6, 2])])
def test_best_weights_are_kept_by_a_metric_through_a_resume(
    mode: Any, steps: list[int], reporter: Reporter
) -> None:
    values = [2.0, 5.0, 1.0, 7.0, math.nan]
    for most in (4, 10):
        best = BestWeights("score", mode, count=2)
        state = fit(reporter, [Scripted(values), best], max_steps=most, epochs=9, resume=True)

    listed = json.loads(Path("best/best.json").read_text())
    assert [entry["step"] for entry in listed["files"]] == steps
    assert sorted(path.name for path in Path("best").glob("*.pt")) == sorted(f"step-{n}.pt" for n in steps)
    assert best.best == Path(f"best/step-{steps[0]}.pt")
    state.model.load_state_dict(torch.load(best.best, weights_only=True))


def test_best_weights_of_an_unknown_metric_say_what_there_is(reporter: Reporter) -> None:
    with pytest.raises(ConfigError, match=r"BestWeights watches 'val_acc', .* there are: val_loss"):
        fit(reporter, [BestWeights("val_acc", "max")])
    with pytest.raises(ValueError, match="mode is 'most'; it can be 'min' or 'max'"):
        BestWeights(mode="most")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ValueError, match="count is 0"):
        BestWeights(count=0)


@pytest.fixture
def installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package that registers a strategy and callbacks, on the import path as pip would leave it."""
    about = tmp_path / "site" / "lab_tools-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-tools\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[berth.strategies]\nhalf = lab_tools:Half\n"
        "[berth.callbacks]\ncount = lab_tools:Count\nbroken = lab_tools:Missing\n"
    )
    (tmp_path / "site" / "lab_tools.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    registered.cache_clear()
    yield
    registered.cache_clear()


PACKAGE = """
from training.callbacks import Callback
from training.strategies.single import Single

class Half(Single):
    '''Half the gradient.'''

    def __init__(self, plan, device, ranks, config):
        super().__init__(plan, device, ranks)

    def backward(self, loss):
        super().backward(loss / 2)

class Count(Callback):
    steps = 0

    def after_step(self, state, metrics):
        Count.steps += 1
"""


def test_strategy_and_callback_of_a_package_are_used_by_name(
    installed_package: Any, reporter: Reporter
) -> None:
    config = TrainConfig(strategy="half", callbacks="count", batch_size=8, checkpoint_every=None)  # type: ignore[arg-type]  # registered
    state = Trainer(config, reporter=reporter).fit(nn.Linear(4, 1), make_data())

    import lab_tools  # type: ignore[import-not-found]  # of the fixture

    assert lab_tools.Count.steps == 2
    assert type(state.strategy).__name__ == "Half"
    assert isinstance(state.strategy, Single)


def test_names_that_nobody_registers_are_refused_with_those_there_are(installed_package: Any) -> None:
    with pytest.raises(ConfigError, match=r"strategy is 'third'; it can be auto, .*, placed, half\."):
        TrainConfig(strategy="third")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(
        ConfigError,
        match="callbacks has 'cuont', which no installed package registers; there are broken, count",
    ):
        TrainConfig(callbacks="count, cuont")
    config = TrainConfig(callbacks="broken")
    with pytest.raises(
        ConfigError, match=r"'broken' of berth\.callbacks is lab_tools:Missing, which cannot be imported"
    ):
        Trainer(config).fit(nn.Linear(4, 1), make_data())
