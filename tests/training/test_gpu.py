"""CUDA paths of the training library; ``make gpu`` runs them on a GPU, and in a dry run the same code on the CPU."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.gpu import DRY_RUN_VARIABLE
from training import TrainConfig, Trainer
from training.callbacks import Callback
from training.config.plan import Plan
from training.data.prefetch import DevicePrefetcher
from training.memory.autotune import is_out_of_memory
from training.memory.meters import make_meter
from training.watch.balance import CudaClock, HostClock

pytestmark = pytest.mark.gpu
STEPS, BATCH, WIDTH = 6, 32, 64
DRY_RUN = DRY_RUN_VARIABLE in os.environ  # read here, because each test runs without Berth's variables


@pytest.fixture(scope="module")
def device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if not DRY_RUN:
        pytest.skip("there is no NVIDIA GPU")
    return torch.device("cpu")


@pytest.fixture(autouse=True)
def _whole_memory() -> Iterator[None]:
    yield
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def make_model() -> nn.Module:
    torch.manual_seed(3)
    layers = [each for _ in range(4) for each in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4))


def make_data(batch_size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(STEPS * batch_size, WIDTH, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(dim=1))


def losses_of(folder: Path, plan: Plan | None = None, **settings: Any) -> list[float]:
    """Train on data of ``STEPS`` whole batches an epoch, and return the loss of each step."""
    losses: list[float] = []
    config = TrainConfig(
        batch_size=BATCH,
        epochs=2,
        checkpoint_every=None,
        checkpoint_dir=str(folder / "c"),
        learning_rate=1e-2,
        **settings,
    )

    class Keep(Callback):
        def after_step(self, state: Any, values: Any) -> None:
            losses.append(float(values["loss"]))

    data = make_data(BATCH if plan is None else plan.samples_per_step)
    Trainer(config, plan=plan).fit(make_model(), data, callbacks=[Keep()])
    return losses


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_each_precision_learns(precision: str, device: torch.device, tmp_path: Path) -> None:
    if precision == "fp16" and device.type == "cpu":
        pytest.skip("the CPU has no scaled fp16")
    losses = losses_of(tmp_path, precision=precision)

    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    "saving",
    [{"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}, {"cpu_offload": "optimizer"},
     {"cpu_offload": "activations"}, {"gradient_accumulation_steps": 2, "batch_size": BATCH // 2}],
    ids=lambda each: "-".join(map(str, each.values())),
)  # fmt: skip
def test_saving_memory_changes_no_loss(saving: dict[str, Any], device: torch.device, tmp_path: Path) -> None:
    plan = replace(Plan(batch_size=BATCH), **saving)

    assert losses_of(tmp_path, plan) == pytest.approx(losses_of(tmp_path), abs=1e-4)


def test_offloaded_activations_lower_the_peak_of_a_gpu(device: torch.device, tmp_path: Path) -> None:
    """Activations of a large batch are most of the memory; on the CPU, whose memory is the host's, it only trains."""
    peaks, losses = {}, {}
    for offload in ("none", "activations"):
        gc.collect()  # what an earlier training left would count
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        losses[offload] = losses_of(tmp_path, Plan(batch_size=64 * BATCH, cpu_offload=offload))
        if device.type == "cuda":
            peaks[offload] = torch.cuda.max_memory_allocated()

    assert losses["activations"] == pytest.approx(losses["none"], abs=1e-4)
    if device.type == "cuda":
        assert peaks["activations"] < peaks["none"]


def test_step_that_runs_out_of_memory_is_retried_with_a_smaller_batch(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cpu":
        pytest.skip("the CPU's own tests pretend a small device")
    expected = losses_of(tmp_path)
    monkeypatch.setattr(nn.Linear, "forward", _fail_once(nn.Linear.forward))

    assert losses_of(tmp_path) == pytest.approx(expected, abs=1e-4)


def _fail_once(forward: Any) -> Any:
    """Take all of the GPU's share at the first large batch, as a real shortage does."""
    failed: list[bool] = []

    def wrapper(self: nn.Linear, inputs: Tensor) -> Any:
        if not failed and len(inputs) == BATCH:
            failed.append(True)
            torch.cuda.set_per_process_memory_fraction(1e-6)
            try:
                torch.empty(1 << 28, device=inputs.device)
            finally:
                torch.cuda.set_per_process_memory_fraction(1.0)
        return forward(self, inputs)

    return wrapper


def test_share_of_a_device_ends_in_the_error_that_we_know(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("only a GPU's allocator has a share")
    torch.cuda.set_per_process_memory_fraction(0.001)

    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 34, dtype=torch.uint8, device=device)

    assert is_out_of_memory(caught.value)


def test_meter_sees_what_tensors_take(device: torch.device) -> None:
    meter = make_meter(device)
    meter.start()
    with meter.measuring():
        before = meter.live_bytes
        kept = torch.zeros(1 << 20, device=device)
        assert meter.live_bytes - before == kept.nbytes
    assert meter.peak_bytes >= kept.nbytes
    assert meter.limit_bytes > 0


def test_clock_of_the_device_measures_work(device: torch.device) -> None:
    clock = CudaClock() if device.type == "cuda" else HostClock()
    left = torch.ones(512, 512, device=device)
    for _ in range(33):
        clock.start()
        left @ left
        clock.stop()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken_s = clock.take()

    assert taken_s >= 0


def test_pinned_batches_arrive_whole_and_in_order(device: torch.device) -> None:
    batches = [(torch.full((4, 3), float(number)), torch.tensor([number])) for number in range(5)]
    loader: Any = [
        tuple(each.pin_memory() if device.type == "cuda" else each for each in pair) for pair in batches
    ]

    arrived = list(DevicePrefetcher(loader, device))

    assert all(inputs.device.type == device.type for inputs, _ in arrived)
    assert [int(target) for _, target in arrived] == [0, 1, 2, 3, 4]


ONE_RANK = """
import sys
from tests.training.test_gpu import losses_of
from pathlib import Path
losses = losses_of(Path(sys.argv[2]), strategy=sys.argv[1])
print("LOSSES", *losses)
"""


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp"])
def test_strategy_on_one_rank_has_the_losses_of_a_single_device(
    strategy: str, device: torch.device, tmp_path: Path
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    script = tmp_path / "rank.py"
    script.write_text(ONE_RANK)
    done = subprocess.run(
        [*torchrun, str(script), strategy, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("LOSSES")]
    assert [float(each) for each in told.split()[1:]] == pytest.approx(losses_of(tmp_path), abs=1e-4)
