"""Plans that mix dimensions on four ranks, a placed model's losses, and plans under a limit of memory."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.figures import ROOT, Outcome
from benchmarks.models import Same
from benchmarks.rivals import bare_torchrun
from training.config import TrainConfig
from training.config.plan import Plan, with_less_memory
from training.memory.meters import HostMeter
from training.plan.choose import make_table
from training.plan.rates import CACHE_VARIABLE
from training.plan.search import DoesNotFit
from training.plan.training import Training
from training.plan.trial import Trial

RANKS = 4
SAME_TO = 1e-6
LIMITS = (0.7, 0.4)  # of the memory that a plain step takes
BATCH = 64


def measure_mixed(outcome: Outcome) -> None:
    """Four ranks plan, and step through all mixes together; then a placed model trains beside a plain loop."""
    with tempfile.TemporaryDirectory() as name:
        answer, output = Path(name) / "answer.json", Path(name) / "output.txt"
        variables = {
            "PYTHONPATH": str(ROOT),
            CACHE_VARIABLE: str(Path(name) / "rates.json"),
            "OMP_NUM_THREADS": "1",
        }
        script = [str(ROOT / "benchmarks" / "scripts" / "mixed_ranks.py"), str(answer)]
        if bare_torchrun(RANKS, script, output, variables).wait():
            raise RuntimeError(f"four ranks could not be measured:\n{output.read_text()[-2000:]}")
        told: dict[str, Any] = json.loads(answer.read_text())
    mixed, placed = told["mixed"], told["placed"]
    outcome.figures["mixed_regret_max"] = max(each["regret"] for each in mixed.values())
    outcome.figures["mixed_regret_noise"] = max(each["noise"] for each in mixed.values())
    outcome.details["mixed_regret"] = mixed
    pairs = zip(placed["losses"], placed["alone"], strict=True)
    outcome.figures["placed_losses_equal"] = float(all(abs(one - other) <= SAME_TO for one, other in pairs))
    outcome.details["placed"] = placed


def measure_limits(outcome: Outcome) -> None:
    """Count the attempts until a planned step runs on a simulated device with little memory."""
    attempts = {}
    for architecture in ARCHITECTURES:
        plain_bytes = _peak_bytes(architecture, Plan(batch_size=BATCH))
        for limit in LIMITS:
            attempts[f"{architecture.name} at {limit:.0%}"] = count_attempts(
                architecture, int(limit * plain_bytes)
            )
    outcome.details["oom_trials"] = attempts
    outcome.figures["oom_trials_max"] = max(each for each in attempts.values() if each is not None)


def count_attempts(architecture: Architecture, limit_bytes: int) -> int | None:
    """Return the attempts until the plan runs, each with less memory than the last; None if none is planned to fit."""
    training = make_training(architecture, TrainConfig(batch_size=BATCH))
    try:
        table = make_table(training, 1, memory_bytes=limit_bytes)
    except DoesNotFit:
        return None
    assert table.chosen is not None  # noqa: S101 -- else DoesNotFit
    plan, attempts = table.chosen.plan, 1
    while not runs_within(training, plan, limit_bytes):
        less = with_less_memory(plan)
        if less is None:
            return attempts + 1
        plan, attempts = less[0], attempts + 1
    return attempts


def runs_within(training: Training, plan: Plan, limit_bytes: int) -> bool:
    try:
        _run(training, plan, limit_bytes)
    except torch.OutOfMemoryError:
        return False
    return True


def _peak_bytes(architecture: Architecture, plan: Plan) -> int:
    return _run(make_training(architecture, TrainConfig(batch_size=BATCH)), plan, 1 << 50)


def _run(training: Training, plan: Plan, limit_bytes: int) -> int:
    """Make two steps, of which the second has the optimizer's state; return the peak."""
    with HostMeter(limit_bytes) as meter, Trial(training, plan) as trial:
        trial.step_s()
        trial.step_s()
    peak_bytes: int = meter.peak_bytes
    return peak_bytes


def make_training(architecture: Architecture, config: TrainConfig) -> Training:
    torch.manual_seed(0)
    return Training(
        config, architecture.make(), Same(architecture.sample), torch.device("cpu"), architecture.loss_fn
    )
