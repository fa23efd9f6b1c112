"""Programs written for the first design's names run as they are, over the same loop."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from training.config import ConfigError
from training.memory.autotune import OutOfMemoryInStep
from training.multi_gpu import (
    DistributedDataParallelTrainer,
    MetricsCollector,
    MultiGPUConfig,
    MultiGPUTrainer,
    MultiGPUTrainingManager,
    PerformanceMonitor,
    TrainingMode,
)
from training.strategies.choose import choose_device


def make_data(samples: int = 60) -> TensorDataset:
    inputs = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


@pytest.fixture
def manager() -> MultiGPUTrainingManager:
    torch.manual_seed(1)
    config = MultiGPUConfig(
        training_mode=TrainingMode.DISTRIBUTED_DATA_PARALLEL,
        batch_size=8,
        learning_rate=0.05,
        num_epochs=3,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        checkpoint_frequency=5,
    )
    return MultiGPUTrainingManager(config)


def test_the_published_loop_runs_and_learns(manager: MultiGPUTrainingManager) -> None:
    model, train_loader, val_loader = manager.setup_training(nn.Linear(4, 1), make_data(), make_data(20))
    assert val_loader is not None
    before = manager.validate_epoch(val_loader)["loss"]

    results = [manager.train_epoch(train_loader, epoch) for epoch in range(3)]
    after = manager.validate_epoch(val_loader)["loss"]
    manager.cleanup()

    assert isinstance(model, nn.Module)
    assert results[-1]["loss"] < results[0]["loss"]
    assert after < before
    assert manager.metrics.summary()["loss"]["last"] == results[-1]["loss"]
    assert sorted(path.name for path in Path("checkpoints").iterdir()) == ["1-10", "1-12", "1-5"]


def test_trainer_steps_one_batch_at_a_time(manager: MultiGPUTrainingManager) -> None:
    _, train_loader, _ = manager.setup_training(nn.Linear(4, 1), make_data())
    monitor = PerformanceMonitor()
    monitor.start_monitoring()
    losses = []
    for batch in train_loader:
        losses.append(manager.trainer.train_step(batch)["loss"])
        monitor.record_metrics(losses[-1], batch_size=8, num_gpus=1)

    summary = monitor.get_summary()
    page = monitor.plot_metrics("metrics.html")

    assert losses[-1] < losses[0]
    assert summary["avg_throughput"] > 0
    assert summary["max_memory_usage"] > 0
    assert "throughput" in page.read_text()
    assert isinstance(manager.trainer, DistributedDataParallelTrainer)


@pytest.mark.parametrize(
    ("name", "starts"),
    [("m.png", b"\x89PNG"), ("m.PDF", b"%PDF"), ("m.svg", b"<svg"), ("m.html", b"<!doctype html>")],
)
@pytest.mark.parametrize("losses", [[], [2.0], [2.0, float("nan"), 1.5, 1.0]])
def test_metrics_are_plotted_in_the_format_of_the_file_ending(
    name: str, starts: bytes, losses: list[float]
) -> None:
    monitor = PerformanceMonitor()
    monitor.start_monitoring()
    for loss in losses:
        monitor.record_metrics(loss, batch_size=8)

    written = monitor.plot_metrics(name)

    assert written == Path(name)
    assert written.read_bytes().startswith(starts)
    assert [path.name for path in Path().iterdir()] == [name]


def test_a_picture_shows_each_curve_by_name_and_range() -> None:
    monitor = PerformanceMonitor()
    monitor.start_monitoring()
    for loss in (2.5, 1.25):
        monitor.record_metrics(loss, batch_size=8)

    text = monitor.plot_metrics("metrics.svg").read_text()

    ElementTree.fromstring(text)  # noqa: S314 -- our own file
    assert all(f">{shown}<" in text for shown in ("loss", "throughput", "memory_gib", "2.5", "1.25"))


@pytest.mark.parametrize("name", ["metrics", "metrics.gif", "metrics.txt"])
def test_unknown_format_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' .* can end in \.png, \.pdf, \.svg, \.html"):
        PerformanceMonitor().plot_metrics(name)
    assert not Path(name).exists()


@pytest.mark.parametrize(
    ("given", "bucket_mib"),
    [
        ({}, 25),
        ({"reduce_bucket_size": 25 * 1024 * 1024}, 25),
        ({"reduce_bucket_size": 25 * 1024 * 1024, "bucket_cap_mb": 25}, 25),
        ({"reduce_bucket_size": 50_000_000}, 48),
        ({"reduce_bucket_size": 40}, 40),
        ({"bucket_cap_mb": 30}, 30),
    ],
)
def test_the_size_of_a_bucket_may_be_given_in_bytes_or_mib(given: dict[str, int], bucket_mib: int) -> None:
    assert MultiGPUConfig(**given).to_train_config().bucket_cap_mb == bucket_mib  # type: ignore[arg-type]  # one of many


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 600),
        ({"timeout": timedelta(minutes=30)}, 1800),
        ({"recovery_timeout": 300}, 300),
        ({"timeout": 300.0, "recovery_timeout": timedelta(minutes=5)}, 300),
    ],
)
def test_waiting_times_may_be_seconds_or_a_timedelta(given: dict[str, Any], seconds: float) -> None:
    assert MultiGPUConfig(**given).to_train_config().recovery_timeout == seconds


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"reduce_bucket_size": 65_536},
            "reduce_bucket_size is 65536, too large for MiB and too small for bytes",
        ),
        (
            {"reduce_bucket_size": 2**20, "bucket_cap_mb": 25},
            r"is 1048576 \(1 MiB\), but bucket_cap_mb is 25",
        ),
        ({"reduce_bucket_size": 0}, "^reduce_bucket_size is 0; it must be at least 1"),
        ({"bucket_cap_mb": 0}, "^bucket_cap_mb is 0; it must be at least 1"),
        ({"num_epochs": 0}, "^num_epochs is 0; it must be at least 1"),
        ({"checkpoint_frequency": 0}, "^checkpoint_frequency is 0; it can be a number of steps"),
        ({"timeout": "long"}, "^timeout is 'long'; it must be a number"),
        ({"recovery_timeout": timedelta(0)}, "^recovery_timeout is 0.0; it must be finite and above 0"),
        (
            {"timeout": 1, "recovery_timeout": 2},
            "timeout is 1 and recovery_timeout is 2; .* Set one of them",
        ),
        ({"use_mixed_precision": "no"}, "^use_mixed_precision is 'no'; it can be True or False"),
        ({"use_gradient_as_bucket_view": 1}, "^use_gradient_as_bucket_view is 1; it can be True or False"),
        ({"training_mode": "fsdp"}, r"^training_mode is 'fsdp'; it can be TrainingMode\.DATA_PARALLEL"),
        (
            {"sync_bn": True, "training_mode": "data_parallel"},
            "^sync_bn is True, but TrainingMode.DATA_PARALLEL",
        ),
    ],
)
def test_errors_use_the_names_that_the_user_wrote(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        MultiGPUConfig(**given).to_train_config()


def test_exchange_settings_have_no_effect_on_one_rank() -> None:
    config = MultiGPUConfig(sync_bn=True, use_fp16_allreduce=True, fp16_compression=True).to_train_config()

    assert (config.strategy, config.sync_batchnorm, config.comm_hook) == ("single", False, "none")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPUs")
def test_sync_bn_on_cpus_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(ConfigError, match=r"^sync_bn is True, which needs GPUs"):
        MultiGPUConfig(sync_bn=True).to_train_config()


def test_errors_are_explained_and_only_out_of_memory_may_continue(manager: MultiGPUTrainingManager) -> None:
    assert manager.fault_tolerance.handle_error(torch.OutOfMemoryError("CUDA out of memory"))
    assert not manager.fault_tolerance.handle_error(ValueError("odd"))
    assert "gradient_accumulation_steps" in manager.fault_tolerance.errors[0]


def test_comparison_report_lists_the_fastest_run_first(manager: MultiGPUTrainingManager) -> None:
    report = manager._generate_comparison_report(
        {"dp": {"throughput": 10.0, "loss": 0.5}, "ddp": {"throughput": 20.0}}
    )

    assert report.splitlines() == ["run | throughput | loss", "ddp | 20 | ", "dp | 10 | 0.5"]


def test_missing_devices_are_a_clear_error() -> None:
    if torch.cuda.is_available():
        config = MultiGPUConfig(device_ids=[torch.cuda.device_count()])
    else:
        config = MultiGPUConfig(device_ids=[0, 1])

    with pytest.raises(ConfigError, match=r"device_ids names GPU .*remove device_ids"):
        MultiGPUTrainingManager(config).setup_training(nn.Linear(4, 1), make_data())


def test_ranks_use_the_gpus_in_device_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setenv("LOCAL_RANK", "1")

    assert choose_device([2, 3]) == torch.device("cuda", 3)
    assert choose_device() == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="1 are named by device_ids; start 1 ranks"):
        choose_device([2])


def test_unknown_backend_is_refused(manager: MultiGPUTrainingManager) -> None:
    manager.config.backend = "carrier pigeon"

    with pytest.raises(ConfigError, match="'carrier pigeon'; it can be 'nccl' or 'gloo'"):
        manager.setup_training(nn.Linear(4, 1), make_data())


class Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """One sample that is drawn anew each time, as augmentation does."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(1), torch.zeros(1)


def test_each_epoch_draws_its_own_augmentation() -> None:
    manager = MultiGPUTrainingManager(MultiGPUConfig(batch_size=1, learning_rate=1e-9, num_workers=1))
    _, loader, _ = manager.setup_training(nn.Linear(1, 1), Noisy())

    first, second = (manager.train_epoch(loader, epoch)["loss"] for epoch in range(2))
    manager.cleanup()

    assert first != pytest.approx(second, rel=1e-3)


def test_trainer_before_setup_is_an_error(manager: MultiGPUTrainingManager) -> None:
    with pytest.raises(ConfigError, match="call setup_training"):
        manager.train_epoch(None, 0)  # type: ignore[arg-type]  # the mistake under test


def test_ranks_without_a_number_are_pointed_to_torchrun() -> None:
    with pytest.raises(ConfigError, match="start with torchrun, or set rank"):
        MultiGPUTrainingManager(MultiGPUConfig(world_size=2)).setup_training(nn.Linear(4, 1), make_data())


def test_torchruns_environment_wins_over_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert MultiGPUConfig(rank=7, world_size=1).to_train_config().strategy == "ddp"


def test_the_abstract_trainer_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        MultiGPUTrainer(nn.Linear(1, 1), MultiGPUConfig(), make_data())  # type: ignore[abstract]  # the mistake under test


def test_metrics_are_summarised_by_name() -> None:
    metrics = MetricsCollector()
    for loss in (3.0, 1.0):
        metrics.record(loss=loss, throughput=torch.tensor(10.0))

    assert metrics.summary()["loss"] == {"mean": 2.0, "last": 1.0, "max": 3.0}


def test_f74_step_that_ends_all_ranks_is_not_retried(manager: MultiGPUTrainingManager) -> None:
    short = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    assert manager.fault_tolerance.handle_error(short)
    assert not manager.fault_tolerance.handle_error(OutOfMemoryInStep(short, step=3, rank=1, why="they wait"))


def test_training_returns_to_its_newest_checkpoint_after_an_error(manager: MultiGPUTrainingManager) -> None:
    model, loader, _ = manager.setup_training(nn.Linear(4, 1), make_data())
    assert manager.fault_tolerance.recover() is None
    manager.train_epoch(loader, 0)  # four steps
    manager.train_epoch(loader, 1)  # eight; step 5 is saved
    with torch.no_grad():
        model.weight.fill_(float("nan"))  # type: ignore[operator]  # a parameter

    step = manager.fault_tolerance.recover()

    assert step == manager.trainer.run.state.step == 5
    assert torch.isfinite(model.weight).all()  # type: ignore[arg-type]  # a parameter
    assert manager.train_epoch(loader, 1)["loss"] > 0
    assert manager.trainer.run.state.step == 8


def test_scheduler_of_an_optimizer_that_no_step_uses_is_refused(manager: MultiGPUTrainingManager) -> None:
    model = nn.Linear(4, 1)
    stray = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters()), 1)

    with pytest.raises(ConfigError, match="This StepLR belongs to an optimizer that no step uses"):
        manager.setup_training(model, make_data(), scheduler=stray)


def test_refused_rank_does_not_count_as_started(manager: MultiGPUTrainingManager) -> None:
    manager.config.world_size, manager.config.rank, manager.config.backend = 8, 0, "carrier pigeon"

    with pytest.raises(ConfigError, match="backend is 'carrier pigeon'"):
        manager.setup_training(nn.Linear(4, 1), make_data())

    assert "RANK" not in os.environ
