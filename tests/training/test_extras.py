"""Callbacks, TensorBoard files, cached datasets and batches made ready on the device."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from orchestrator.agent.telemetry.event_files import find_files, read_event, read_records
from orchestrator.agent.telemetry.metric_lines import ParsedBatch
from training import TrainConfig, Trainer
from training.callbacks import EarlyStopping, EveryEpoch
from training.data import DataError
from training.data.cache import InMemory, OnDisk, size_bytes
from training.data.prefetch import DevicePrefetcher
from training.report import Reporter
from training.report.tensorboard import TensorBoardSink


def make_data(samples: int = 24) -> TensorDataset:
    inputs = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def fit(reporter: Reporter, callbacks: list[Any], rate: float = 0.0) -> Any:
    torch.manual_seed(0)
    config = TrainConfig(batch_size=8, epochs=20, checkpoint_every=None, learning_rate=rate or 1e-30)
    return Trainer(config, reporter=reporter).fit(
        nn.Linear(4, 1), make_data(), make_data(8), callbacks=callbacks
    )


def test_early_stopping_ends_and_saves_a_training_without_improvement(reporter: Reporter) -> None:
    stopping = EarlyStopping(patience=2, least_change=1e-6)

    state = fit(reporter, [stopping])

    assert state.step == 3 * 3  # the first epoch is the best, two more bring nothing
    assert stopping.best_step == 3
    assert [path.name for path in Path("checkpoints").iterdir()] == ["1-9"]


def test_early_stopping_continues_an_improving_training(reporter: Reporter) -> None:
    seen: list[float | None] = []

    state = fit(reporter, [EarlyStopping(), EveryEpoch(lambda state, loss: seen.append(loss))], rate=0.01)

    assert state.step == 60
    assert len(seen) == 20


def test_early_stopping_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match="patience is 0"):
        EarlyStopping(patience=0)
    with pytest.raises(ValueError, match="needs a validation dataset"):
        EarlyStopping().after_epoch(None, None)  # type: ignore[arg-type]  # it is not looked at


def test_reported_numbers_become_tensorboard_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    reporter = Reporter(tmp_path / "metrics.jsonl", active=True)
    reporter.add_sink(TensorBoardSink(tmp_path / "runs"))
    for step in range(3):
        reporter.report(step, loss=torch.tensor(float(step)))
    reporter.close()

    batch = ParsedBatch()
    for path in find_files([tmp_path / "runs"], 0):
        for _, record in read_records(path.read_bytes()):
            read_event(record, "", 0, 2e9, batch)
    assert [(point.name, point.step, point.value) for point in batch.points] == [
        ("loss", 0, 0.0), ("loss", 1, 1.0), ("loss", 2, 2.0),
    ]  # fmt: skip
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


class Counted:
    """A dataset that notes what is read of it."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        return {"image": torch.full((100,), float(index)), "label": index}


def test_memory_cache_reads_samples_once_up_to_its_limit() -> None:
    source = Counted()
    cached = InMemory(source, most_bytes=3 * size_bytes(source[0]))
    source.read.clear()

    for _ in range(2):
        assert [cached[index]["label"] for index in range(5)] == [0, 1, 2, 3, 4]

    assert source.read == [0, 1, 2, 3, 4, 3, 4]
    assert len(cached) == 10


def test_disk_cache_survives_the_process(tmp_path: Path) -> None:
    first, second = Counted(), Counted()

    written = OnDisk(first, tmp_path / "cache")[4]
    read = OnDisk(second, tmp_path / "cache")[4]

    assert (first.read, second.read) == ([4], [])
    assert torch.equal(written["image"], read["image"])
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["4.pt", "length"]


def test_a_cache_of_another_dataset_is_refused(tmp_path: Path) -> None:
    OnDisk(make_data(24), tmp_path)

    with pytest.raises(DataError, match="caches a dataset of 24 samples, not 8"):
        OnDisk(make_data(8), tmp_path)


def test_code_in_the_disk_cache_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return json.dumps, ({},)

    cache = OnDisk(Counted(), tmp_path)
    torch.save(Bomb(), tmp_path / "3.pt")

    with pytest.raises(Exception, match=r"[Ww]eights"):
        cache[3]


def test_batches_are_augmented_on_the_device_in_order() -> None:
    def double(inputs: Tensor) -> Tensor:
        return inputs * 2

    batches = [(torch.full((2,), float(number)), number) for number in range(3)]

    ready = list(DevicePrefetcher(batches, torch.device("cpu"), augment=double))

    assert [(inputs.tolist(), target) for inputs, target in ready] == [
        ([0.0, 0.0], 0), ([2.0, 2.0], 1), ([4.0, 4.0], 2),
    ]  # fmt: skip
    assert list(DevicePrefetcher([], torch.device("cpu"))) == []
