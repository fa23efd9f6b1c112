"""The code blocks of the document that named ``MultiGPUTrainingManager`` run as they are written there.

The document stands beside the project, and its text is not part of it.  Without it these tests are skipped,
and ``test_multi_gpu.py`` still holds every name.
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import torch
from torch import nn
from torch.utils.data import TensorDataset

from training import multi_gpu
from training.config import ConfigError
from training.multi_gpu import MultiGPUConfig, MultiGPUTrainingManager, TrainingMode

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
PUBLISHED = 27
GPUS = torch.cuda.device_count()
NEEDS_GPUS = {  # by heading; what a machine without these GPUs answers, when the block starts a training
    "Basic DataParallel Training": "device_ids names GPU 0, 1, 2, 3, but there is none here; remove device_ids",
    "DistributedDataParallel Training": "backend is 'nccl', which needs GPUs; remove it, or choose 'gloo'",
    "3. Communication Errors": "backend is 'nccl', which needs GPUs; remove it, or choose 'gloo'",
}
SEVERAL_PROCESSES: dict[str, Any] = {
    "world_size": None,
    "rank": None,
    "local_rank": None,
    "device_ids": None,
    "backend": None,
}
"""What a block says of its machine, for the training on this one."""


def read_blocks() -> list[tuple[str, str]]:
    """Read the blocks under their headings; none where the document is absent."""
    documents = sorted(SEEDS.glob("002_*.txt"))
    text = documents[0].read_text() if documents else ""
    parts = re.split(r"^#+ ([^\n]*)$|^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    heading, blocks = "", []
    for title, code in zip(parts[1::3], parts[2::3], strict=True):
        heading = title or heading
        if code:
            blocks.append((heading, code))
    return blocks


BLOCKS = read_blocks()
pytestmark = pytest.mark.skipif(not BLOCKS, reason="the document with the blocks is not beside the project")


def with_our_import(code: str) -> str:
    """Change the one line that names the module; the document's own line forgets some names."""
    return re.sub(
        r"^from multi_gpu_training import .*$", "from training.multi_gpu import *", code, flags=re.M
    )


def make_data(samples: int = 32) -> TensorDataset:
    inputs = torch.randn(samples, 100, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :10].clone())


class Pretrained(nn.Module):
    """Stands in for a model of the package ``transformers``, which loads its weights from a network."""

    @classmethod
    def from_pretrained(cls, name: str) -> "Pretrained":
        assert name
        return cls()

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(100, 10)


def left_to_the_reader() -> dict[str, Any]:
    """What the blocks use and do not define: a model, data, numbers, and a training on its way."""
    model = nn.Linear(100, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    manager = MultiGPUTrainingManager(MultiGPUConfig(batch_size=8))
    prepared, loader, _ = manager.setup_training(nn.Linear(100, 10), make_data())
    monitor = multi_gpu.PerformanceMonitor()
    monitor.start_monitoring()
    monitor.record_metrics(torch.tensor(2.0), 8, 1)
    return {
        **{name: getattr(multi_gpu, name) for name in multi_gpu.__all__},
        "torch": torch, "nn": nn, "timedelta": timedelta, "logger": structlog.get_logger(),
        "YourModel": lambda: nn.Linear(100, 10), "YourDataset": make_data, "dataset": make_data(),
        "val_dataset": make_data(16), "num_epochs": 2, "epoch": 1, "batch_idx": 3, "current_epoch": 1,
        "current_step": 4, "metrics_history": {}, "loss": torch.tensor(1.5), "batch_size": 8, "num_gpus": 1,
        "optimal_batch_size": 8, "model": prepared, "optimizer": optimizer, "manager": manager,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "monitor": monitor,
        "batch": next(iter(loader)), "results": {"dp": {"throughput": 1.0}, "ddp": {"throughput": 2.0}},
        "elapsed_time": 1.0, "samples_per_second": 2.0, "gpu_memory_gb": 3.0, "utilization_percent": 4.0,
        "loss_values": [1.0], "config": MultiGPUConfig(),
    }  # fmt: skip


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    if "transformers" not in sys.modules:
        stand_in = SimpleNamespace(AutoModel=Pretrained, AutoTokenizer=Pretrained)
        monkeypatch.setitem(sys.modules, "transformers", stand_in)
    given = left_to_the_reader()
    yield given
    given["manager"].cleanup()


def train_as_configured(config: MultiGPUConfig) -> float:
    """Train an epoch with the block's settings, on this machine and with few worker processes."""
    workers = min(config.num_workers, 1)
    here = replace(
        config,
        **SEVERAL_PROCESSES,
        num_workers=workers,
        prefetch_factor=config.prefetch_factor if workers else None,
        checkpoint_frequency=None,
        checkpoint_dir="of-the-block",
    )
    manager = MultiGPUTrainingManager(here)
    _, loader, _ = manager.setup_training(nn.Sequential(nn.Linear(100, 10), nn.BatchNorm1d(10)), make_data())
    result = manager.train_epoch(loader, 0)
    manager.cleanup()
    return result["loss"]


def test_the_document_has_all_its_blocks() -> None:
    assert len(BLOCKS) == PUBLISHED


@pytest.mark.filterwarnings("ignore:There is no GPU here", "ignore:'pin_memory' argument is set")
@pytest.mark.parametrize(("heading", "code"), BLOCKS, ids=[f"{n}-{h}" for n, (h, _) in enumerate(BLOCKS)])
def test_published_block_runs_as_written(
    heading: str, code: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name for name, value in names.items() if isinstance(value, MultiGPUConfig)}
    starts_training = "setup_training(" in code
    if heading in NEEDS_GPUS and starts_training and GPUS < 8:
        with pytest.raises(ConfigError) as refusal:
            exec(with_our_import(code), names)  # noqa: S102 -- the document's own code
        assert NEEDS_GPUS[heading] in str(refusal.value)
    else:
        with monkeypatch.context() as torchrun:  # which wins over the numbers in the block
            if "rank=0" in code and starts_training:
                for name, value in (
                    ("RANK", "0"),
                    ("LOCAL_RANK", "0"),
                    ("WORLD_SIZE", "1"),
                    ("MASTER_PORT", "0"),
                ):
                    torchrun.setenv(name, value)
                torchrun.setenv("MASTER_ADDR", "127.0.0.1")
            exec(with_our_import(code), names)  # noqa: S102 -- as above

    assert "RANK" not in os.environ  # a refused block does not make this process a rank
    configs = [value for value in names.values() if isinstance(value, MultiGPUConfig)]
    assert len(configs) >= len(before)
    if "onfig" in code:
        assert all(torch.isfinite(torch.tensor(train_as_configured(config))) for config in configs)


def test_published_picture_is_the_file_that_was_named(names: dict[str, Any]) -> None:
    code = next(code for _, code in BLOCKS if "plot_metrics" in code)

    exec(code, names)  # noqa: S102 -- as above

    assert Path("training_metrics.png").read_bytes().startswith(b"\x89PNG")
    assert names["comparison"].splitlines()[1].startswith("ddp")


def test_published_metric_names_are_measured(names: dict[str, Any]) -> None:
    code = next(code for _, code in BLOCKS if "loss_history" in code)
    exec(code, names)  # noqa: S102 -- as above
    manager: MultiGPUTrainingManager = names["manager"]
    loader = manager.trainer.run.train_dataset

    manager.train_epoch(torch.utils.data.DataLoader(loader, batch_size=8), 0)
    measured = manager.metrics.get_metrics()

    assert set(names["metrics"]) <= set(measured)
    assert isinstance(measured["training_time"], float)
    assert len(measured["loss_history"] or []) == 1  # type: ignore[arg-type]  # a list


def test_published_optimizer_and_schedule_are_those_of_the_steps(names: dict[str, Any]) -> None:
    code = next(code for _, code in BLOCKS if "CosineAnnealingLR" in code)
    exec(code, names)  # noqa: S102 -- as above
    manager = MultiGPUTrainingManager(MultiGPUConfig(batch_size=8, checkpoint_dir="own"))
    optimizer, scheduler = names["optimizer"], names["scheduler"]

    _, loader, _ = manager.setup_training(
        names["model"], make_data(), optimizer=optimizer, scheduler=scheduler
    )
    manager.train_epoch(loader, 0)
    manager.cleanup()

    assert scheduler.last_epoch == 4  # four steps of eight samples
    assert optimizer.param_groups[0]["lr"] == pytest.approx(scheduler.get_last_lr()[0])
    assert optimizer.param_groups[0]["lr"] < 1e-4


def test_data_parallel_without_gpus_runs_on_the_cpu_and_says_so() -> None:
    if GPUS:
        pytest.skip("this machine has GPUs")
    config = MultiGPUConfig(training_mode=TrainingMode.DATA_PARALLEL)

    with pytest.warns(UserWarning, match="no GPU here, so TrainingMode.DATA_PARALLEL runs as one process"):
        assert config.to_train_config().strategy == "single"
