import json
import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from benchmarks.models import make_mlp
from tests.training.plan.models import make_case
from tests.training.plan.test_search import Same
from tests.training.started import PATIENCE_S
from training import TrainConfig, Trainer
from training.config import ConfigError
from training.config.plan import Plan
from training.launch import WarmLauncher
from training.plan.choose import choose_plan
from training.plan.rates import CACHE_VARIABLE
from training.plan.training import Training
from training.plan.trial import measure_steps_s
from training.report import Reporter

REPOSITORY = Path(__file__).parents[3]


def test_trial_steps_leave_the_model_and_the_generators_alone():
    model, sample, loss_fn = make_case("residual")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    training = Training(TrainConfig(), model, Same(sample), torch.device("cpu"), loss_fn)
    plan = Plan(batch_size=4, gradient_accumulation_steps=2, activation_checkpointing="full")

    assert min(measure_steps_s(training, [plan, Plan(batch_size=4)])) > 0

    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_automatic_batch_size_is_chosen_and_trained_with(tmp_path):
    model = make_mlp(16, 2)
    data = TensorDataset(torch.randn(64, 16), torch.zeros(64, dtype=torch.long))
    config = TrainConfig(batch_size="auto", checkpoint_dir=str(tmp_path), max_steps=2)

    state = Trainer(config).fit(model, data)

    assert state.step in (1, 2)


class LooksAtValues(torch.nn.Linear):
    """Cannot be followed on fake tensors."""

    def forward(self, inputs):
        return super().forward(inputs if inputs.sum().item() > 0 else -inputs)


def test_model_that_cannot_be_traced_trains_with_its_settings():
    data = TensorDataset(torch.randn(64, 8), torch.zeros(64, dtype=torch.long))
    training = Training(
        TrainConfig(batch_size="auto"),
        LooksAtValues(8, 4),
        data,
        torch.device("cpu"),
        torch.nn.functional.cross_entropy,
    )

    assert choose_plan(training) == Plan(batch_size=32)


def test_model_that_cannot_be_traced_gets_its_batch_size_by_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTH_DEVICE_MEMORY_BYTES", "2000000")
    monkeypatch.setenv("BERTH_PRETEND_MEMORY_BYTES", "2000000")
    monkeypatch.setenv("BERTH_METRICS_FILE", str(tmp_path / "metrics.jsonl"))
    model = torch.nn.Sequential(LooksAtValues(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
    data = TensorDataset(torch.randn(8192, 64), torch.zeros(8192, dtype=torch.long))
    reporter = Reporter(tmp_path / "metrics.jsonl")
    config = TrainConfig(batch_size="auto", checkpoint_every=None, checkpoint_dir=str(tmp_path), max_steps=3)

    state = Trainer(config, reporter=reporter).fit(model, data)
    reporter.close()

    plan = state.strategy.plan
    told = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (chosen,) = [line for line in told if line.get("event") == "plan"]
    assert 64 < plan.batch_size < 1000
    assert f"{plan.batch_size} fits" in chosen["why"]
    assert not [line for line in told if line.get("event") == "less_memory"]


ON_TRIAL = """
import sys, torch
from torch import nn
from torch.utils.data import TensorDataset
from training import TrainConfig, Trainer
data = TensorDataset(torch.randn(64, 8), torch.zeros(64).long())
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
trainer = Trainer(TrainConfig(plan_trials=True, batch_size=8, checkpoint_every=None))
sys.stdout.write(f"reached {trainer.fit(model, data).step}" + chr(10))  # in one piece: two ranks share a pipe
again = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
Trainer(TrainConfig(strategy="zero1", batch_size=8, checkpoint_every=None)).fit(again, data)
sys.stdout.write(f"evaluated {trainer.evaluate(again, data) > 0} {tuple(trainer.predict(again, data).shape)}" + chr(10))
"""


@pytest.mark.slow
def test_ranks_time_the_best_plans_and_reconnect_for_each_call(tmp_path, monkeypatch):
    script, output = tmp_path / "learn.py", tmp_path / "output"
    script.write_text(ON_TRIAL)
    launcher = WarmLauncher(socket_path=tmp_path / "s")
    variables = {
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        CACHE_VARIABLE: str(tmp_path / "rates"),
    }
    try:
        with output.open("wb") as file:
            ranks = launcher.start(
                script, ranks=2, cwd=tmp_path, output=file, env={**os.environ, **variables}
            )
            codes = ranks.wait(PATIENCE_S)
    finally:
        launcher.stop()

    said = output.read_text()
    assert codes == [0, 0], said
    assert "measured" in said.split("the fastest of")[0]  # the table says it before the training starts
    assert said.count("reached 4") == 2
    assert said.count("evaluated True (64, 2)") == 2  # the ranks meet again for each call


def test_parameter_offload_needs_a_strategy_that_shards_parameters():
    data = TensorDataset(torch.randn(64, 8), torch.zeros(64, dtype=torch.long))
    spelt_out = TrainConfig(cpu_offload="parameters")
    searched = TrainConfig(cpu_offload="parameters", activation_checkpointing="auto")

    for config in (spelt_out, searched):
        with pytest.raises(ConfigError, match="zero2 and fsdp can do, and they need several ranks"):
            Trainer(config).fit(torch.nn.Linear(8, 2), data)


def test_the_plan_is_printed_before_anything_runs(tmp_path, capsys):
    data = TensorDataset(torch.randn(64, 16), torch.zeros(64, dtype=torch.long))
    config = TrainConfig(batch_size="auto", checkpoint_every=None, checkpoint_dir=str(tmp_path), max_steps=1)

    Trainer(config, reporter=Reporter(tmp_path / "metrics.jsonl")).fit(make_mlp(16, 2), data)

    assert capsys.readouterr().out.startswith("Plan for 1 x")
