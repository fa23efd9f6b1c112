"""``python -m benchmarks.kill_points KILLS WORKERS``: kill a training at random moments, resume it, compare bit by bit.

The process that runs this imports torch once and forks every training from itself.  Prints one JSON
object: how many were killed, how many came out equal, and what was wrong with the others.
"""

import collections
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo  # the first optimizer would load it, in every fork
from torch import Tensor, nn
from torch.utils.data import Dataset

from training import TrainConfig, Trainer

SAMPLES, STEPS, EPOCHS_SEEN = 83, 36, 7
LONGEST_S = 60.0


class Numbered(Dataset[tuple[Tensor, Tensor]]):
    """Samples that say which they are, with an augmentation that draws random numbers."""

    def __init__(self) -> None:
        self.inputs = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index] + 0.1 * torch.randn(8), torch.tensor(index)


def train(folder: Path, attempt: int, workers: int) -> None:
    """The whole training or the rest of it; leaves a hash of the weights when it came to its end."""
    os.environ.update(
        BERTH_CHECKPOINT_DIR=str(folder / "checkpoints"),
        BERTH_METRICS_FILE=str(folder / "metrics.jsonl"),
        BERTH_ATTEMPT=str(attempt),
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
    schedulers: list[torch.optim.lr_scheduler.LRScheduler] = []
    seen = os.open(folder / "seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note_and_rate(outputs: Tensor, numbers: Tensor) -> Tensor:
        line = [attempt, schedulers[0].last_epoch + 1, *numbers.tolist()]  # it counts the steps
        os.write(seen, f"{' '.join(map(str, line))}\n".encode())
        return (outputs.squeeze(1) - numbers / SAMPLES).square().mean()

    def make_scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        schedulers.append(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS))
        return schedulers[0]

    config = TrainConfig(
        batch_size=8, gradient_accumulation_steps=2, max_grad_norm=1.0, epochs=99, max_steps=STEPS,
        num_workers=workers, checkpoint_every=4, seed=5,
    )  # fmt: skip
    Trainer(config).fit(model, Numbered(), loss_fn=note_and_rate, scheduler=make_scheduler)
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    (folder / "weights").write_text(digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Story:
    """What a training did, over all its attempts."""

    losses: dict[int, float]
    weights: str
    repeats_data: str  # empty, or what is wrong with the samples


def read_story(folder: Path) -> Story:
    losses: dict[int, float] = {}
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        if "loss" in line and losses.setdefault(line["step"], line["loss"]) != line["loss"]:
            return Story({}, "", f"step {line['step']} has two losses")
    return Story(losses, (folder / "weights").read_text(), _check_samples(folder / "seen"))


def _check_samples(seen: Path) -> str:
    """Steps that two attempts made must have had the same samples, and each epoch every sample once."""
    by_step: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
    for line in seen.read_text().splitlines():
        attempt, step, *numbers = map(int, line.split())
        by_step[step, attempt] += numbers
    kept: dict[int, list[int]] = {}
    for (step, _), numbers in sorted(by_step.items()):
        before = kept.get(step, numbers)
        if before[: len(numbers)] != numbers[: len(before)]:  # a killed step may have seen some only
            return f"step {step} was repeated with other samples"
        kept[step] = max(before, numbers, key=len)
    everything = [number for _, numbers in sorted(kept.items()) for number in numbers]
    for start in range(0, len(everything), SAMPLES):
        epoch = everything[start : start + SAMPLES]
        if len(set(epoch)) != len(epoch):
            return f"epoch {start // SAMPLES} has a sample twice"
    return "" if len(kept) == STEPS else f"{len(kept)} of {STEPS} steps left a trace"


def fork(act: Callable[[], None]) -> int:
    """Run ``act`` in a child that leads a group of its own; returns its pid."""
    pid = os.fork()
    if pid == 0:
        os.setpgrp()
        _run_and_exit(act)
    os.setpgid(pid, pid)  # here too: the child may not have run yet when its group is signalled
    return pid


def _run_and_exit(act: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        act()
        code = 0
    except BaseException as error:  # noqa: BLE001 -- told on the way out
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def end_of(pid: int) -> int:
    """Exit code, negative for a signal; one that takes a minute is killed."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_and_resume(folder: Path, workers: int, after_s: float) -> int | None:
    """The step that it resumed after; None when it had ended before it could be killed."""
    folder.mkdir()
    pid = fork(lambda: train(folder, 1, workers))
    time.sleep(after_s)
    if os.waitpid(pid, os.WNOHANG)[0]:
        return None
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    code = end_of(fork(lambda: train(folder, 2, workers)))
    if code != 0:
        raise RuntimeError(f"the resumed training ended with {code}")
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return next((int(line["step"]) for line in events if line.get("event") == "resumed"), 0)


def run(kills: int, workers: int) -> dict[str, Any]:
    dice = random.Random(workers)  # noqa: S311 -- moments, not secrets
    with tempfile.TemporaryDirectory(prefix="berth-kills-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        durations = []
        for number in range(3):  # the first warms up
            whole = scratch / f"whole{number}"
            whole.mkdir()
            start_s = time.perf_counter()
            if end_of(fork(lambda folder=whole: train(folder, 1, workers))) != 0:  # type: ignore[misc]  # a default binds it
                raise RuntimeError("the training fails without being killed")
            durations.append(time.perf_counter() - start_s)
        expected, longest_s = read_story(whole), min(durations)
        resumed_at: list[int] = []
        wrong, number = [], 0
        while len(resumed_at) < kills:
            folder, number = scratch / str(number), number + 1
            step = kill_and_resume(folder, workers, dice.uniform(longest_s / 5, longest_s))
            if step is None:
                continue
            resumed_at.append(step)
            if (story := read_story(folder)) != expected:
                wrong.append(f"kill {number}, resumed after step {step}: {_difference(story, expected)}")
        return {
            "kills": kills,
            "equal": kills - len(wrong),
            "resumed_after": dict(sorted(collections.Counter(resumed_at).items())),
            "wrong": wrong[:5],
        }


def _difference(story: Story, expected: Story) -> str:
    if story.repeats_data:
        return story.repeats_data
    for step, loss in expected.losses.items():
        if story.losses.get(step) != loss:
            return f"loss of step {step} is {story.losses.get(step)}, not {loss}"
    return "the weights differ"


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
