"""``python -m benchmarks.gpu_parts PART FILE``: one measurement of ``make gpu``, on the GPU or, in a dry run, on the CPU."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.evaluation import evaluate
from benchmarks.figures import ROOT, Outcome
from benchmarks.models import SMALL_MODELS, Case, Gpt, Same, word_loss
from benchmarks.regret import StepS, compare
from training.checkpoint import Checkpointer
from training.config import TrainConfig
from training.config.plan import Plan
from training.data import move_to
from training.data.collation import repeat
from training.memory.autotune import find_batch_size
from training.memory.meters import HostMeter, make_meter
from training.plan.choose import make_table
from training.plan.hardware import read_hardware
from training.plan.memory import peak_bytes
from training.plan.training import Training
from training.plan.trial import Trial
from training.plan.workload import Workload

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
BATCH = 256 if ON_GPU else 8
PACKED = 4


def make_training(architecture: Architecture, config: TrainConfig) -> Training:
    torch.manual_seed(0)
    return Training(config, architecture.make(), Same(architecture.sample), DEVICE, architecture.loss_fn)


def measure_memory(outcome: Outcome) -> None:
    """Predicted peak of a plain step against the measured one, for each architecture."""
    errors = {}
    workspace_bytes = read_hardware(DEVICE, 1).workspace_bytes
    for architecture in ARCHITECTURES:
        training = make_training(architecture, TrainConfig())
        workload = Workload.of(
            training.model, architecture.sample, architecture.loss_fn, None, 1 << 20, on_gpu=ON_GPU
        )
        plan = Plan(batch_size=BATCH)
        predicted = peak_bytes(workload.footprint("fp32", "none"), plan, workload.optimizer) + workspace_bytes
        errors[architecture.name] = 100 * (predicted / step_peak_bytes(training, plan) - 1)
    outcome.details["memory_error_percent"] = errors
    outcome.figures["memory_error_median_percent"] = statistics.median(map(abs, errors.values()))
    outcome.figures["memory_error_worst_percent"] = max(map(abs, errors.values()))
    outcome.figures["models"] = len(errors)


def step_peak_bytes(training: Training, plan: Plan) -> int:
    """Return the peak of the second step, which has the optimizer's state."""
    if not ON_GPU:
        with HostMeter(1 << 60) as meter, Trial(training, plan) as trial:
            trial.step_s()
            meter.start()
            trial.step_s()
        peak: int = meter.peak_bytes
        return peak
    with Trial(training, plan) as trial:
        trial.step_s()
        gpu = make_meter(DEVICE)
        gpu.start()
        trial.step_s()
        return gpu.peak_bytes


def measure_regret(outcome: Outcome) -> None:
    """The chosen plan against the best candidate, by real steps in turns."""
    regrets = {case.name: _find_regret(case) for case in SMALL_MODELS}
    outcome.details["regret"] = regrets
    outcome.figures["plan_regret_max"] = max(regrets.values())


def _find_regret(case: Case) -> float:
    config = TrainConfig(
        batch_size=16, activation_checkpointing="auto", precision="auto" if ON_GPU else "fp32"
    )
    training = Training(config, case.make(), Same(case.sample), DEVICE, case.loss_fn)
    table = make_table(training, 1)
    assert table.chosen is not None  # noqa: S101 -- the device's memory holds these models
    chosen = table.chosen.plan
    with ExitStack() as stack:

        def stepping(plan: Plan) -> StepS:
            trial = stack.enter_context(Trial(training, plan))
            return lambda: trial.step_s() / plan.samples_per_step

        plans = {each.plan: stepping(each.plan) for each in table.candidates}
        found = compare(plans, chosen, lambda: stepping(chosen), share=0.5)
    return max(1.0, found.verdict.to_rival)


def measure_trials(outcome: Outcome) -> None:
    """Trials until the largest batch is found within a limit."""
    trials = {}
    for architecture in ARCHITECTURES:
        training = make_training(architecture, TrainConfig())
        model = training.model.to(DEVICE).train()
        sample = move_to(torch.utils.data.default_collate([architecture.sample]), DEVICE)

        def attempt(size: int, training: Training = training, sample: object = sample) -> None:
            torch.autograd.backward(training.objective.loss(training.model, repeat(sample, size)))
            training.model.zero_grad(set_to_none=True)

        meter = make_meter(DEVICE, [*model.parameters(), *model.buffers()])
        reserve = max(0, meter.limit_bytes - (1 << 30 if ON_GPU else 24 << 20))
        found = find_batch_size(attempt, meter=meter, most=1 << 16, reserve_bytes=reserve)
        trials[architecture.name] = len(found.trials)
    outcome.details["trials"] = trials
    outcome.figures["batch_trials_max"] = max(trials.values())


def measure_evaluation(outcome: Outcome) -> None:
    whole = evaluate(ARCHITECTURES if ON_GPU else ARCHITECTURES[:1])
    outcome.figures |= whole.figures
    outcome.details |= whole.details | {"missing": whole.missing}


def measure_compile(outcome: Outcome) -> None:
    """A step of a GPT with torch.compile over one without; the steps take turns."""
    with ExitStack() as stack:
        trials = {}
        for compiled in (False, True):
            torch.manual_seed(0)
            model = Gpt(512, 6, 256, 5000) if ON_GPU else Gpt(32, 2, 32, 50)
            words = torch.zeros(256 if ON_GPU else 32, dtype=torch.long)
            training = Training(TrainConfig(compile=compiled), model, Same((words, words)), DEVICE, word_loss)
            trials[compiled] = stack.enter_context(Trial(training, Plan(batch_size=16)))
        times = [{compiled: trial.step_s() for compiled, trial in trials.items()} for _ in range(12)][4:]
    outcome.figures["compile_step_ratio"] = statistics.median(each[True] / each[False] for each in times)


def measure_checkpoint(outcome: Outcome) -> None:
    """How long a save holds a training, against ``torch.save`` with fsync."""
    floats = (1 << 28) if ON_GPU else (1 << 20)
    state = {"model": {f"{number}": torch.zeros(floats // 16, device=DEVICE) for number in range(16)}}
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpointer(folder)
        checkpointer.allocate(state)
        stalls = []
        for step in range(1, 4):
            began_s = time.perf_counter()
            checkpointer.save(state, step=step)
            stalls.append(time.perf_counter() - began_s)
            checkpointer.wait()
        checkpointer.close()
        began_s = time.perf_counter()
        with (Path(folder) / "plain.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        plain_s = time.perf_counter() - began_s
    outcome.figures["checkpoint_stall_ms"] = 1000 * statistics.median(stalls)
    outcome.figures["checkpoint_stall_ratio"] = statistics.median(stalls) / plain_s


_JOB = """
import sys, time, torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).to(device)
optimizer = torch.optim.AdamW(model.parameters())
inputs = torch.zeros(64, 256, device=device)
for step in range(int(sys.argv[1])):
    loss = model(inputs).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
float(loss)
"""


def measure_packing(outcome: Outcome) -> None:
    """Four small jobs at once on one device against one after the other; and the start of a process with a first step."""
    steps = "2000" if ON_GPU else "20"

    def start(count: str = steps) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", _JOB, count], cwd=ROOT)

    began_s = time.perf_counter()
    _end([start("1")])
    outcome.figures["first_step_s"] = time.perf_counter() - began_s
    began_s = time.perf_counter()
    for _ in range(PACKED):
        _end([start()])
    alone_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    _end([start() for _ in range(PACKED)])
    outcome.figures["packed_over_serial"] = (time.perf_counter() - began_s) / alone_s


def _end(jobs: "list[subprocess.Popen[bytes]]") -> None:
    codes = [job.wait() for job in jobs]
    if any(codes):
        raise RuntimeError(f"jobs ended with {codes}")


MEASURES: dict[str, Callable[[Outcome], None]] = {
    "memory": measure_memory,
    "regret": measure_regret,
    "trials": measure_trials,
    "evaluation": measure_evaluation,
    "compile": measure_compile,
    "checkpoint": measure_checkpoint,
    "packing": measure_packing,
}


def main() -> None:
    name, file = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    outcome = Outcome()
    MEASURES[name](outcome)
    file.write_text(json.dumps({"figures": outcome.figures, "details": outcome.details}))


if __name__ == "__main__":
    main()
