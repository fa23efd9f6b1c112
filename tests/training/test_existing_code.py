"""Models, batches and datasets as existing programs have them: dicts, a loss of the model's own, streams."""

import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from tests.training.conftest import Lines
from training import TrainConfig, Trainer
from training.callbacks import Callback
from training.config import ConfigError
from training.data import DataError, StreamReader, StreamSampler, make_loader
from training.model.batches import BatchError
from training.plan.training import Training
from training.plan.workload import Workload
from training.report import Reporter
from training.trainer import Stopped

CPU = torch.device("cpu")


@dataclass
class Output:
    """What a model of Hugging Face's library returns."""

    loss: Tensor | None
    logits: Tensor


class Classifier(nn.Module):
    """A model with Hugging Face's habits: arguments by name, its own loss if it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Output:
        weights = attention_mask.unsqueeze(-1).float()
        logits = self.head((self.body(input_ids) * weights).sum(1) / weights.sum(1))
        return Output(None if labels is None else nn.functional.cross_entropy(logits, labels), logits)


class Rows:
    """Rows of lists and texts, as of a dataset file, with access by index."""

    def __init__(self, count: int = 24, width: int = 5, label: str = "labels") -> None:
        chance = random.Random(0)  # noqa: S311 -- no secret
        self.rows = [
            {
                "input_ids": [chance.randrange(20) for _ in range(width)],
                "attention_mask": [1] * width,
                label: number % 3,
                "text": f"row {number}",
            }
            for number in range(count)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def fit(reporter: Reporter, model: nn.Module, data: Any, val: Any = None, **settings: Any) -> Any:
    options = {name: settings.pop(name) for name in ("metrics", "loss_fn", "augment", "collate_fn", "callbacks")
               if name in settings}  # fmt: skip
    settings = {"batch_size": 8, "checkpoint_every": None, "resume": False, **settings}
    torch.manual_seed(0)
    return Trainer(TrainConfig(**settings), reporter=reporter).fit(model, data, val, **options)


def make_line() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(2, 1)


def losses(lines: Lines) -> list[float]:
    return [line["loss"] for line in lines() if "loss" in line]


@pytest.mark.parametrize("label", ["labels", "label"])
def test_dict_batches_train_a_model_that_returns_its_loss(
    label: str, reporter: Reporter, lines: Lines
) -> None:
    rows = Rows(label=label)

    fit(reporter, Classifier(), rows, rows, epochs=12, learning_rate=0.05)

    assert losses(lines)[-1] < 0.7 * losses(lines)[0]
    assert sum("val_loss" in line for line in lines()) == 12


def test_loss_of_ones_own_gets_the_outputs_and_the_labels_of_a_dict(reporter: Reporter, lines: Lines) -> None:
    seen: list[tuple[type, torch.Size]] = []

    def loss_fn(outputs: Output, targets: Tensor) -> Tensor:
        assert outputs.loss is None
        seen.append((type(outputs), targets.shape))
        return nn.functional.cross_entropy(outputs.logits, targets)

    fit(reporter, Classifier(), Rows(), loss_fn=loss_fn)

    assert seen == [(Output, torch.Size([8]))] * 3


def test_only_input_of_a_dict_goes_to_a_plain_model_whatever_its_name(
    reporter: Reporter, lines: Lines
) -> None:
    data = [{"image": torch.full((4,), float(number)), "label": number % 2} for number in range(16)]

    fit(reporter, nn.Linear(4, 2), data)

    assert len(losses(lines)) == 2


def test_rows_without_labels_say_how_to_get_a_loss(reporter: Reporter) -> None:
    with pytest.raises(
        BatchError, match=r"without a loss from input_ids, attention_mask, other, text\. Add 'labels'"
    ):
        fit(reporter, Classifier(), Rows(label="other"))


def test_batch_of_three_parts_says_what_a_batch_can_be(reporter: Reporter) -> None:
    data = TensorDataset(torch.zeros(8, 2), torch.zeros(8, 2), torch.zeros(8))

    with pytest.raises(BatchError, match="A batch of 3 parts is not a pair"):
        fit(reporter, nn.Linear(2, 2), data)


def test_rows_of_different_lengths_ask_for_padding_and_take_a_collate_fn(
    reporter: Reporter, lines: Lines
) -> None:
    rows = Rows(16)
    for row in rows.rows[::2]:
        row["input_ids"], row["attention_mask"] = [1, 2, 3], [1, 1, 1]

    def pad(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        width = max(len(sample["input_ids"]) for sample in samples)
        columns = {name: [s[name] + [0] * (width - len(s[name])) for s in samples]
                   for name in ("input_ids", "attention_mask")}  # fmt: skip
        return {**{name: torch.tensor(values) for name, values in columns.items()},
                "labels": torch.tensor([sample["labels"] for sample in samples])}  # fmt: skip

    with pytest.raises(DataError, match=r"column 'input_ids' has samples of different sizes.* collate_fn"):
        fit(reporter, Classifier(), rows)
    fit(reporter, Classifier(), rows, collate_fn=pad)

    assert len(losses(lines)) == 2


def test_planner_follows_the_step_of_a_dict(reporter: Reporter) -> None:
    training = Training.of(TrainConfig(), Classifier(), Rows(), CPU)
    workload = Workload.of(training.model, training.sample(), training.objective, None, 24, on_gpu=False)

    footprint = workload.footprint("fp32", "none")

    assert footprint.parameter_bytes == sum(each.nbytes for each in training.model.parameters())
    assert footprint.timeline.shape[1] > 5
    assert footprint.unused == ()


def test_automatic_batch_of_a_dict_is_chosen_and_trained_with(reporter: Reporter, lines: Lines) -> None:
    state = fit(reporter, Classifier(), Rows(64), batch_size="auto", max_steps=1)

    assert state.strategy.plan.batch_size > 1
    assert len(losses(lines)) == 1


class Numbers(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream of distinct samples, with random noise, that does not know its length."""

    def __init__(self, count: int = 21) -> None:
        self.count = count
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        numbers = [*range(self.count)]
        random.shuffle(numbers)
        for number in numbers:
            inputs = torch.tensor([float(number), 1.0])
            yield inputs, inputs.sum(0, keepdim=True) + 0.1 * torch.rand(1)


class DividesItself(Numbers):
    """Gives each worker its own share, as streams of several files do."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        own = slice(worker.id, None, worker.num_workers) if worker else slice(None)
        yield from [*super().__iter__()][own]


def read_stream(data: Any, ranks: int, workers: int, position: int = 0, size: int = 2) -> list[list[float]]:
    """The samples that each rank gets from ``position`` on, without the fillers."""
    of_ranks = []
    for rank in range(ranks):
        sampler = StreamSampler(None, seed=3, rank=rank, world_size=ranks)
        sampler.position = position
        parts = make_loader(data, sampler, size, workers)
        own: list[float] = []
        for count, (inputs, _) in parts:
            own += inputs[: sampler.rank_count(count), 0].tolist()
        of_ranks.append(own)
    return of_ranks


@pytest.mark.parametrize("kind", [Numbers, DividesItself])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (3, 0), (2, 2)])
def test_each_sample_of_a_stream_is_read_once_over_ranks_and_workers(
    kind: type[Numbers], ranks: int, workers: int
) -> None:
    of_ranks = read_stream(kind(), ranks, workers)

    assert sorted(number for own in of_ranks for number in own) == [*map(float, range(21))]


def test_stream_continues_at_any_position_on_another_number_of_ranks() -> None:
    whole = read_stream(Numbers(), 1, 0)[0]

    for position, ranks in ((4, 2), (9, 3), (20, 2)):
        rest = [number for own in read_stream(Numbers(), ranks, 0, position) for number in own]
        assert sorted(rest) == sorted(whole[position:])


def test_stream_of_unknown_length_trains_whole_epochs_and_then_knows_its_end(
    reporter: Reporter, lines: Lines
) -> None:
    data = Numbers()

    state = fit(
        reporter, nn.Linear(2, 1), data, Numbers(5), epochs=3, gradient_accumulation_steps=2, batch_size=4
    )

    assert state.step == 9  # 8 + 8 + 5 samples an epoch
    assert state.sampler.epoch == 3
    totals = [(line.get("step"), line["total_steps"]) for line in lines() if "total_steps" in line]
    assert totals == [(None, 9)]
    assert sum("val_loss" in line for line in lines()) == 3


def test_stream_that_knows_its_length_shows_progress_from_the_start(reporter: Reporter, lines: Lines) -> None:
    class Sized(Numbers):
        def __len__(self) -> int:
            return self.count

    fit(reporter, nn.Linear(2, 1), Sized(), epochs=2)

    assert [line["total_steps"] for line in lines() if "total_steps" in line] == [6]
    assert len(losses(lines)) == 6


def test_loader_in_place_of_a_dataset_says_what_to_pass(reporter: Reporter) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1)))

    with pytest.raises(
        DataError, match=r"A DataLoader makes batches itself. Pass its dataset \(loader\.dataset\)"
    ):
        fit(reporter, nn.Linear(2, 1), loader)


def test_endless_stream_ends_after_max_steps(reporter: Reporter, lines: Lines) -> None:
    class Endless(Numbers):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            while True:
                yield from super().__iter__()

    state = fit(reporter, nn.Linear(2, 1), Endless(), max_steps=7)

    assert state.step == 7
    assert [line["total_steps"] for line in lines() if "total_steps" in line] == [7]


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_stream_has_the_losses_of_one_that_ran_through(
    workers: int, reporter: Reporter, lines: Lines
) -> None:
    def run(folder: str, steps: int) -> None:
        fit(reporter, make_line(), Numbers(), checkpoint_dir=folder, max_steps=steps, epochs=9,
            batch_size=4, num_workers=workers, resume=True)  # fmt: skip

    run("whole", 14)
    through = losses(lines)
    for steps in (3, 8, 14):
        run("parts", steps)

    assert losses(lines)[len(through) :] == through


def test_stream_that_ends_before_its_checkpoint_is_refused(reporter: Reporter) -> None:
    fit(reporter, nn.Linear(2, 1), Numbers(), max_steps=2, checkpoint_dir="c")

    with pytest.raises(DataError, match="gave no sample after the 16 that were trained on"):
        fit(reporter, nn.Linear(2, 1), Numbers(10), max_steps=4, checkpoint_dir="c", resume=True)
    with pytest.raises(DataError, match="made with a stream, and this dataset is read by index"):
        fit(reporter, nn.Linear(2, 1), [*Numbers()], max_steps=4, checkpoint_dir="c", resume=True)


def test_settings_that_a_stream_cannot_have_are_refused(reporter: Reporter) -> None:
    with pytest.raises(DataError, match="The stream gave no sample; give"):
        StreamReader(make_loader(Numbers(0), StreamSampler(None), 4, 0), StreamSampler(None), 4).look_ahead()
    with pytest.raises(ConfigError, match="load_balance needs a dataset that is read by index"):
        fit(reporter, nn.Linear(2, 1), Numbers(), load_balance=True)
    with pytest.raises(
        ConfigError, match="the end of this stream is unknown; set lr_warmup_steps, or max_steps"
    ):
        fit(reporter, nn.Linear(2, 1), Numbers(), lr_scaling="linear", lr_batch_size=4)


def test_columns_of_a_datasets_object_train_by_index_and_as_a_stream(
    reporter: Reporter, lines: Lines
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = Rows().rows
    table = datasets.Dataset.from_list(rows)

    for data in (table, table.with_format("torch"), table.to_iterable_dataset(num_shards=3).shuffle(seed=1)):
        fit(reporter, Classifier(), data, data, epochs=2, num_workers=2)

    assert len(losses(lines)) == 3 * 6


def test_augmentation_changes_training_batches_only_and_resumes_exactly(
    reporter: Reporter, lines: Lines
) -> None:
    data = TensorDataset(torch.ones(24, 2), torch.ones(24, 1))
    seen: list[Any] = []

    def augment(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        inputs, targets = batch
        seen.append(len(inputs))
        return inputs + torch.rand_like(inputs), targets

    def run(folder: str, steps: int) -> None:
        fit(reporter, make_line(), data, data, augment=augment, checkpoint_dir=folder, max_steps=steps,
            epochs=3, resume=True)  # fmt: skip

    run("whole", 9)
    through = losses(lines)
    assert seen == [8] * 9
    for steps in (4, 9):
        run("parts", steps)

    assert losses(lines)[len(through) :] == through


def test_stop_request_ends_a_stream_after_a_save(reporter: Reporter) -> None:
    class Stop(Callback):
        def after_step(self, state: Any, metrics: Any) -> None:
            if state.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        fit(reporter, nn.Linear(2, 1), Numbers(), epochs=50, checkpoint_dir="c", callbacks=[Stop()])

    assert json.loads((next(Path("c").iterdir()) / "manifest.json").read_text())["step"] >= 2
