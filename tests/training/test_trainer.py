"""The trainer: right numbers on one rank and on several, and the same numbers after a kill."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.training.started import PATIENCE_S
from tests.waiting import wait_until
from training import TrainConfig, Trainer
from training.checkpoint import store
from training.checkpoint.store import CheckpointError, CheckpointRefused
from training.config import ConfigError
from training.data import DataError
from training.launch import ENTRY, WarmRun
from training.model.objective import default_loss
from training.report import Reporter
from training.trainer import EXIT_STOPPED, Stopped

RUN = Path(__file__).with_name("runs.py")
Lines = Callable[[], list[dict[str, Any]]]
StartPython = Callable[..., subprocess.Popen[str]]
StartRanks = Callable[..., WarmRun]


def linear_data(length: int = 60) -> TensorDataset:
    inputs = torch.randn(length, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def fit(reporter: Reporter, model: nn.Module | None = None, **settings: Any) -> nn.Module:
    model = model or make_model()
    config = TrainConfig(**{"batch_size": 8, "checkpoint_every": None, **settings})
    Trainer(config, reporter=reporter).fit(model, linear_data(), optimizer=sgd)
    return model


def losses(lines: list[dict[str, Any]]) -> list[float]:
    return [line["loss"] for line in lines if "loss" in line]


def test_training_reports_loss_rate_and_speed_of_each_step(reporter: Reporter, lines: Lines) -> None:
    fit(reporter, epochs=5)

    written = lines()
    steps = [line for line in written if "loss" in line]
    assert written[0] == {"total_steps": 40}
    assert [line["step"] for line in steps] == list(range(1, 41))
    assert steps[0]["loss"] > 4 * steps[-1]["loss"]
    assert steps[0]["lr"] == 0.05
    assert all(line["samples_per_s"] > 0 for line in steps)


def test_validation_loss_covers_all_samples(reporter: Reporter, lines: Lines) -> None:
    model, val = make_model(), linear_data(13)

    Trainer(TrainConfig(batch_size=8, epochs=1), reporter=reporter).fit(
        model, linear_data(), val, optimizer=sgd
    )

    (line,) = [line for line in lines() if "val_loss" in line]
    with torch.no_grad():
        expected = nn.functional.mse_loss(model(val.tensors[0]), val.tensors[1])
    assert line["val_loss"] == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("batch_size", "micro_batches"), [(4, 4), (8, 2), (5, 3)])
def test_accumulating_k_micro_batches_equals_one_batch(
    batch_size: int, micro_batches: int, reporter: Reporter, tmp_path: Path
) -> None:
    """60 samples: the last step of an epoch is a partial one, whose last micro-batch is partial too."""
    whole = fit(reporter, batch_size=batch_size * micro_batches, epochs=3, checkpoint_dir="a")
    split = fit(
        reporter,
        batch_size=batch_size,
        gradient_accumulation_steps=micro_batches,
        epochs=3,
        checkpoint_dir="b",
    )

    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_loop_gives_the_results_of_a_plain_loop(reporter: Reporter, lines: Lines) -> None:
    fit(reporter, epochs=2, shuffle=False, max_grad_norm=0.5)

    plain, model = [], make_model()
    optimizer = sgd(model)
    inputs, targets = linear_data().tensors
    for _ in range(2):
        for start in range(0, 60, 8):
            loss = nn.functional.mse_loss(model(inputs[start : start + 8]), targets[start : start + 8])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            plain.append(loss.item())
    assert losses(lines()) == plain


def test_bf16_trains_with_weights_in_fp32(reporter: Reporter, lines: Lines) -> None:
    seen: list[torch.dtype] = []
    model = make_model()
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))

    Trainer(TrainConfig(batch_size=8, precision="bf16"), reporter=reporter).fit(
        model,
        linear_data(),
        loss_fn=lambda outputs, targets: nn.functional.mse_loss(outputs.float(), targets),
    )

    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_max_steps_ends_a_run_between_epochs(reporter: Reporter, lines: Lines) -> None:
    fit(reporter, epochs=9, max_steps=11)

    assert len(losses(lines())) == 11
    assert [place.step for place in store.list_places(Path("checkpoints"))] == [11]


def test_restarted_finished_run_trains_no_further(reporter: Reporter, lines: Lines) -> None:
    fit(reporter, epochs=1)
    before = len(losses(lines()))

    fit(reporter, epochs=1, resume=True)

    assert len(losses(lines())) == before


@pytest.mark.parametrize("resume", [True, "auto"])
def test_unreadable_checkpoint_ends_the_run_before_training(
    reporter: Reporter, lines: Lines, resume: bool | str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BERTH_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("BERTH_JOB_ID", "job-1")
    store.write(tmp_path / "checkpoints", 1, 10, {}, lambda file: torch.save(nn.Linear(1, 1), file))

    with pytest.raises(CheckpointRefused, match="1-10 is intact, but cannot be resumed from"):
        fit(reporter, epochs=1, resume=resume)
    assert losses(lines()) == []


def test_resuming_from_damaged_checkpoints_trains_nothing(
    reporter: Reporter, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(reporter, epochs=1)
    before = losses(lines())
    for place in store.list_places(Path("checkpoints")):
        (place.folder / "state.pt").unlink()
    monkeypatch.setenv("BERTH_JOB_ID", "job-1")

    with pytest.raises(CheckpointError, match=r"No checkpoint in .* is intact.* Nothing was trained"):
        fit(reporter, epochs=2, resume=True)
    assert losses(lines()) == before


def test_f56_differences_to_a_checkpoint_of_another_model_are_listed_by_name(reporter: Reporter) -> None:
    fit(reporter, nn.Linear(4, 1), epochs=1)

    with pytest.raises(CheckpointError, match=r"another model: .*weight is in the checkpoint") as caught:
        fit(reporter, nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1)), epochs=2, resume=True)

    assert "0.weight is in the model, and not in the checkpoint" in str(caught.value)


def test_sigterm_saves_the_current_step_and_stops(reporter: Reporter) -> None:
    class Terminated(nn.Linear):
        forwards = 0

        def forward(self, inputs: Tensor) -> Tensor:
            Terminated.forwards += 1
            if Terminated.forwards == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().forward(inputs)

    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(Stopped) as stopped:
        fit(reporter, Terminated(4, 1), epochs=9)

    assert (stopped.value.step, stopped.value.code) == (5, EXIT_STOPPED)
    assert store.verify(store.list_places(Path("checkpoints"))[0].folder)["step"] == 5
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigusr1_saves_and_the_training_continues(reporter: Reporter, lines: Lines) -> None:
    class Asked(nn.Linear):
        forwards = 0

        def forward(self, inputs: Tensor) -> Tensor:
            Asked.forwards += 1
            if Asked.forwards == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            return super().forward(inputs)

    fit(reporter, Asked(4, 1), epochs=1)

    assert [line["step"] for line in lines() if line.get("event") == "checkpoint"] == [3, 8]


def test_the_default_loss_follows_the_targets() -> None:
    scores = torch.randn(4, 3)

    assert torch.equal(
        default_loss(scores, torch.tensor([0, 1, 2, 0])),
        nn.functional.cross_entropy(scores, torch.tensor([0, 1, 2, 0])),
    )
    assert default_loss(scores, scores + 1) == 1


def test_unusable_datasets_are_refused_before_training(
    reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="list_iterator can be read only once"):
        Trainer(reporter=reporter).fit(make_model(), iter([1]))
    with pytest.raises(ConfigError, match="torchrun did not start this process"):
        fit(reporter, strategy="ddp")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun started 2 ranks"):
        fit(reporter, strategy="single")


def reported_losses(file: Path) -> dict[int, float]:
    """The loss of each step; a step that two attempts reported must have one loss."""
    found: dict[int, float] = {}
    for line in map(json.loads, file.read_text().splitlines()):
        if "loss" in line:
            assert found.setdefault(line["step"], line["loss"]) == line["loss"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_f17_losses_after_kills_and_resumes_are_equal_bit_for_bit(
    workers: int, tmp_path: Path, start_ranks: StartRanks
) -> None:
    whole = {"BERTH_CHECKPOINT_DIR": "whole", "BERTH_METRICS_FILE": "whole.jsonl"}
    assert start_ranks(RUN, workers, 60, **whole).wait(PATIENCE_S) == [0], (tmp_path / "output").read_text()
    parts = {"BERTH_CHECKPOINT_DIR": "parts", "BERTH_METRICS_FILE": "parts.jsonl"}
    for attempt, least_step in enumerate((8, 20, 33), start=1):
        run = start_ranks(RUN, workers, 60, 0.005, BERTH_ATTEMPT=str(attempt), **parts)
        wait_until(
            lambda least_step=least_step: any(  # type: ignore[misc]  # a default binds it
                place.step >= least_step for place in store.list_places(tmp_path / "parts")
            ),
            message=(tmp_path / "output").read_text,
        )
        os.kill(run.pids[0], signal.SIGKILL)
        assert run.wait(PATIENCE_S) == [-signal.SIGKILL], "it ended before it was killed"

    last = start_ranks(RUN, workers, 60, BERTH_ATTEMPT="4", **parts)
    assert last.wait(PATIENCE_S) == [0], (tmp_path / "output").read_text()

    assert reported_losses(tmp_path / "parts.jsonl") == reported_losses(tmp_path / "whole.jsonl")


@pytest.mark.slow
def test_sigterm_ends_a_run_and_loses_no_step(tmp_path: Path, start_python: StartPython) -> None:
    environment = {"BERTH_CHECKPOINT_DIR": "c", "BERTH_METRICS_FILE": "m"}
    process = start_python(RUN, 0, 5000, 0.002, **environment)
    while not store.list_places(tmp_path / "c"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)

    assert process.wait(PATIENCE_S) == EXIT_STOPPED
    newest = store.list_places(tmp_path / "c")[0]
    assert max(reported_losses(tmp_path / "m")) == store.verify(newest.folder)["step"]
    assert not (tmp_path / "finished").exists()


@pytest.mark.slow
def test_two_ranks_train_as_one_with_twice_the_batch(tmp_path: Path, start_ranks: StartRanks) -> None:
    """Equal within rounding: averaging over two ranks adds in another order."""
    script = tmp_path / "compare.py"
    script.write_text(COMPARE)
    for ranks in (1, 2):
        run = start_ranks(script, ranks=ranks, BERTH_CHECKPOINT_DIR=f"c{ranks}")
        assert run.wait(PATIENCE_S) == [0] * ranks, (tmp_path / "output").read_text()

    alone, together = (torch.load(tmp_path / f"weights{ranks}.pt") for ranks in (1, 2))
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight, rtol=1e-5, atol=1e-6)


COMPARE = """
import os, torch
from pathlib import Path
from torch import nn
from torch.utils.data import TensorDataset
from training import TrainConfig, Trainer

ranks = int(os.environ["WORLD_SIZE"])
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
inputs = torch.randn(61, 4, generator=torch.Generator().manual_seed(0))  # one rank gets a sample less
config = TrainConfig(batch_size=6 // ranks, gradient_accumulation_steps=2, epochs=3, max_grad_norm=1.0)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
Trainer(config).fit(model, data, data, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05))
if os.environ["RANK"] == "0":
    torch.save(model.state_dict(), f"weights{ranks}.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("every", [0, 3], ids=["at the end", "each third step"])
def test_what_a_bad_loss_made_is_never_saved(
    ranks: int, every: int, tmp_path: Path, start_ranks: StartRanks
) -> None:
    """The last rank alone meets it, in the last step before a save, which is too late for an exchange."""
    script = tmp_path / "spoil.py"
    script.write_text(SPOIL)

    assert start_ranks(script, every, ranks=ranks).wait(PATIENCE_S) == [0] * ranks, (
        tmp_path / "output"
    ).read_text()

    for rank in range(ranks):
        said = (tmp_path / f"said-{rank}").read_text()
        assert said.startswith(f"The loss is not finite since step 6: rank {ranks - 1} (nan at step 6)")
    assert all(place.step < 6 for place in store.list_places(tmp_path / "c"))


SPOIL = """
import os, sys, torch
from itertools import count
from pathlib import Path
from torch import nn
from torch.utils.data import TensorDataset
from training import TrainConfig, Trainer
from training.watch.losses import BadLoss

rank, ranks, every = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
model, calls = nn.Linear(4, 1), count(1)
model.register_forward_hook(
    lambda module, inputs, output: output * (float("nan") if next(calls) == 6 and rank == ranks - 1 else 1)
)
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
config = TrainConfig(
    batch_size=8 // ranks, epochs=2 if every else 1, checkpoint_every=every or None, checkpoint_dir="c",
    stop_on_nan=True,
)
said = "trained to the end"
try:
    Trainer(config).fit(model, data)
except BadLoss as error:
    said = str(error)
Path(f"said-{rank}").write_text(said)
"""


@pytest.mark.slow
def test_number_of_ranks_may_change_between_attempts(tmp_path: Path, start_ranks: StartRanks) -> None:
    environment = {"BERTH_CHECKPOINT_DIR": "c", "BERTH_METRICS_FILE": "m"}
    for attempt, (ranks, steps) in enumerate(((2, 10), (1, 20), (2, 30)), start=1):
        run = start_ranks(RUN, 0, steps, ranks=ranks, BERTH_ATTEMPT=str(attempt), **environment)
        assert run.wait(PATIENCE_S) == [0] * ranks, (tmp_path / "output").read_text()

    assert sorted(reported_losses(tmp_path / "m")) == list(range(1, 31))
    resumed = [line for line in (tmp_path / "m").read_text().splitlines() if '"resumed"' in line]
    assert [json.loads(line)["checkpoint"] for line in resumed] == ["1-10", "2-20"]


@pytest.mark.slow
def test_sigterm_to_both_ranks_saves_one_step_that_they_agree_on(
    tmp_path: Path, start_python: StartPython
) -> None:
    every = 400  # seldom, so that the stop does not meet a step that is saved anyway
    # Ranks start through our entry: torch with gloo may abort where the interpreter ends by itself.
    process = start_python(
        "from torch.distributed.run import main; main()", "--standalone", "--nproc-per-node", 2, ENTRY,
        RUN, 0, 50_000, 0.002, every, BERTH_CHECKPOINT_DIR="c", BERTH_METRICS_FILE="m",
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE_S
    while not store.list_places(tmp_path / "c"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)  # torchrun passes it on
    process.wait(PATIENCE_S)

    newest = store.list_places(tmp_path / "c")[0]
    assert store.verify(newest.folder)["world_size"] == 2
    assert max(reported_losses(tmp_path / "m")) == newest.step
    assert newest.step % every  # not one of those saved anyway


@pytest.mark.slow
def test_a_model_file_is_trained_without_a_loop_of_its_own(tmp_path: Path, start_python: StartPython) -> None:
    (tmp_path / "tiny.py").write_text(MODEL_FILE)

    process = start_python(
        "import training.__main__ as m; m.main()", "tiny.py", "--batch-size", "4", "--max-steps", "6",
        BERTH_DATASET_NUMBERS="12", BERTH_METRICS_FILE="m", BERTH_CHECKPOINT_DIR="c",
    )  # fmt: skip

    printed, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert [place.step for place in store.list_places(tmp_path / "c")] == [3]
    assert max(reported_losses(tmp_path / "m")) == 3
    assert re.fullmatch(r"(step [1-3] .*\n)+", printed)
    assert printed.splitlines()[-1].startswith("step 3 val_loss ")


@pytest.mark.slow
def test_last_of_repeated_options_counts(tmp_path: Path, start_python: StartPython) -> None:
    (tmp_path / "tiny.py").write_text(MODEL_FILE)

    process = start_python(
        "import training.__main__ as m; m.main()", "tiny.py", "--epochs", "7", "--max-steps", "7",
        "--batch-size", "4", "--max-steps", "5", BERTH_DATASET_NUMBERS="12", BERTH_CHECKPOINT_DIR="c",
    )  # fmt: skip

    assert process.wait(PATIENCE_S) == 0, process.communicate()
    assert store.list_places(tmp_path / "c")[0].step == 5


MODEL_FILE = """
import torch
from torch.utils.data import TensorDataset

def build_model():
    return torch.nn.Linear(2, 2)

def build_dataset(path):
    inputs = torch.randn(int(path), 2)
    return TensorDataset(inputs, inputs), TensorDataset(inputs, inputs)

def loss_fn(outputs, targets):
    return (outputs - targets).square().mean()

def configure_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""


def test_model_file_without_a_function_is_refused(tmp_path: Path, start_python: StartPython) -> None:
    (tmp_path / "tiny.py").write_text("def build_model(): ...")

    process = start_python("import training.__main__ as m; m.main()", "tiny.py")
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 1
    assert (
        errors
        == "tiny.py has no build_dataset(); a model file needs build_model() and build_dataset(path).\n"
    )
