"""Techniques that one rank shows: scaling, rates, recomputing, offload, bad losses, inference."""

from collections.abc import Callable
from functools import partial, partialmethod
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from training import TrainConfig, Trainer
from training.checkpoint import store
from training.config import ConfigError
from training.config.plan import Plan
from training.data import DataError, ResumableSampler
from training.memory.activation_checkpointing import checkpoint_activations, restore_activations
from training.model.blocks import find_chain
from training.model.layer_splits import find_layers
from training.model.objective import add_warmup
from training.report import Reporter
from training.strategies.choose import make_strategy
from training.strategies.stages import Stage, even_bounds
from training.watch.balance import divide
from training.watch.communication import StepProfile, busy_share
from training.watch.losses import BadLoss, LossWatch

Lines = Callable[[], list[dict[str, Any]]]
CPU = torch.device("cpu")


def make_data(length: int = 64) -> TensorDataset:
    inputs = torch.randn(length, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def fit(reporter: Reporter, model: nn.Module | None = None, **settings: Any) -> nn.Module:
    model = model or make_model()
    config = TrainConfig(**{"batch_size": 8, "checkpoint_every": None, "epochs": 2, **settings})
    Trainer(config, reporter=reporter).fit(
        model, make_data(), optimizer=lambda each: torch.optim.SGD(each.parameters(), lr=0.05)
    )
    return model


def test_fp16_trains_with_scaled_gradients(reporter: Reporter, lines: Lines) -> None:
    scaled = fit(reporter, precision="fp16", max_grad_norm=1.0, epochs=3)
    plain = fit(reporter, max_grad_norm=1.0, epochs=3)

    for some, other in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(some, other, rtol=0.05, atol=0.02)
        assert not torch.equal(some, other)


@pytest.mark.slow
def test_compiled_model_learns_the_same(reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    # The graph is captured and run; the C++ compiler behind the usual backend would take most of a minute.
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))

    compiled = fit(reporter, compile=True)

    assert compiled._compiled_call_impl is not None
    for some, other in zip(compiled.parameters(), fit(reporter).parameters(), strict=True):
        torch.testing.assert_close(some, other)


@pytest.mark.parametrize("pretended", [False, True])
def test_f74_step_out_of_memory_is_retried_with_smaller_micro_batches(
    reporter: Reporter, lines: Lines, monkeypatch: pytest.MonkeyPatch, *, pretended: bool
) -> None:
    """With an odd batch too: 15 are three times 5.  A pretended device of plenty changes nothing."""
    model, whole = make_model(), make_model()
    calls = count()

    def fail_once(gradient: Tensor) -> None:
        if next(calls) == 3:  # in the backward pass of the second micro-batch of step 2
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model[0].weight.register_hook(fail_once)  # type: ignore[operator]  # a Linear
    if pretended:
        monkeypatch.setenv("BERTH_PRETEND_MEMORY_BYTES", str(1 << 40))
    settings = {"batch_size": 15, "gradient_accumulation_steps": 2}
    fit(reporter, model, **settings)
    told = [line for line in lines() if line.get("event") == "less_memory"]
    fit(reporter, whole, **settings)

    assert [(line["step"], line["from_batch_size"], line["to_batch_size"]) for line in told] == (
        [(2, 15, 5)] if pretended else []
    )
    for some, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(some, other)


def test_f74_device_too_small_for_the_batch_trains_with_a_smaller_one(
    reporter: Reporter, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_PRETEND_MEMORY_BYTES", "24000")

    fit(reporter, batch_size=64, epochs=3)

    steps = [line["step"] for line in lines() if "loss" in line]
    told = [line for line in lines() if line.get("event") == "less_memory"]
    assert steps == [1, 2, 3]
    assert {line["step"] for line in told} == {1}
    assert told[-1]["to_batch_size"] < 64


def test_a_bad_loss_is_an_event_with_its_step(reporter: Reporter, lines: Lines) -> None:
    model = make_model()
    calls = count()
    model.register_forward_hook(
        lambda module, inputs, output: output * (float("inf") if next(calls) == 2 else 1)
    )

    fit(reporter, model)

    (event,) = [line for line in lines() if line.get("event") == "bad_loss"]
    assert (event["step"], event["rank"], event["loss"], event["stops"]) == (3, 0, "inf", False)
    assert len([line for line in lines() if "loss" in line and "step" in line]) > 3


def test_stop_on_nan_ends_the_run_in_that_step(reporter: Reporter) -> None:
    with pytest.raises(BadLoss, match="since step 1: rank 0 "):
        fit(reporter, nn.Sequential(make_model(), Broken()), stop_on_nan=True)


class Broken(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / 0.0


class LateCopies:
    """As a GPU's: a loss arrives once somebody waits for it."""

    def __init__(self) -> None:
        self.on_way: list[tuple[Tensor, Tensor]] = []

    def start(self, losses: Tensor) -> tuple[Tensor, Callable[[], bool]]:
        self.on_way.append((torch.zeros_like(losses), losses))
        return self.on_way[-1][0], lambda: not self.on_way

    def wait(self) -> None:
        for on_host, losses in self.on_way:
            on_host.copy_(losses)
        self.on_way.clear()


@pytest.mark.parametrize("every", [None, 5], ids=["at the end", "each fifth step"])
def test_bad_loss_that_was_not_read_yet_is_never_saved(
    reporter: Reporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | None
) -> None:
    monkeypatch.setattr("training.trainer.LossWatch", partial(LossWatch, copies=LateCopies()))
    model, calls = make_model(), count(1)
    model.register_forward_hook(
        lambda module, inputs, output: output * (float("nan") if next(calls) == 14 else 1)
    )

    with pytest.raises(BadLoss, match="since step 14: rank 0 "):
        fit(reporter, model, stop_on_nan=True, checkpoint_dir=str(tmp_path / "c"), checkpoint_every=every)

    assert all(place.step < 14 for place in store.list_places(tmp_path / "c"))


def test_a_dataset_shorter_than_a_batch_is_refused(reporter: Reporter) -> None:
    with pytest.raises(DataError, match="64 samples, fewer than one batch: batch_size 65 on 1 "):
        fit(reporter, batch_size=65)


def test_dp_without_gpus_is_refused_with_alternatives(reporter: Reporter) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    with pytest.raises(ConfigError, match="strategy 'dp' needs GPUs, and there is none; use 'single'"):
        fit(reporter, strategy="dp")


def test_a_plan_for_other_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(
        ConfigError, match=r"The plan is for 4 ranks .dp 2 x pp 2 x tp 1., but torchrun started 2"
    ):
        make_strategy(Plan(strategy="pipeline", dp=2, pp=2), CPU)


def test_existing_optimizer_trains_on_one_rank(reporter: Reporter) -> None:
    model = make_model()
    before = [parameter.clone() for parameter in model.parameters()]

    Trainer(TrainConfig(batch_size=8, checkpoint_every=None), reporter=reporter).fit(
        model, make_data(), optimizer=torch.optim.SGD(model.parameters(), lr=0.05)
    )

    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("how", ["selective", "full"])
def test_activation_checkpointing_keeps_names_and_types_and_can_be_undone(how: Any) -> None:
    model = make_model()
    names = list(model.state_dict())

    blocks = checkpoint_activations(model, how)

    assert list(model.state_dict()) == names
    assert [type(block) for block in blocks] == [nn.Linear] * 3
    assert all("forward" in vars(block) for block in blocks)
    restore_activations(blocks)
    assert not any("forward" in vars(block) for block in blocks)


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"lr_scaling": "linear"}, 0.05),  # one rank
        ({"lr_scaling": "linear", "lr_batch_size": 2}, 0.2),
        ({"lr_scaling": "sqrt", "lr_batch_size": 2}, 0.1),
        ({"lr_scaling": "linear", "lr_batch_size": 32}, 0.0125),
        ({"lr_scaling": "linear", "lr_batch_size": 2, "gradient_accumulation_steps": 2}, 0.4),
    ],
)
def test_rate_grows_with_the_batch_it_was_chosen_for(
    reporter: Reporter, lines: Lines, settings: dict[str, Any], rate: float
) -> None:
    fit(reporter, lr_warmup_steps=0, max_steps=2, **settings)

    assert [line["lr"] for line in lines() if "lr" in line] == pytest.approx([rate, rate])


def test_a_raised_rate_is_warmed_up_over_a_twentieth_of_the_run(reporter: Reporter, lines: Lines) -> None:
    fit(reporter, lr_scaling="linear", lr_batch_size=2, epochs=5)  # 40 steps

    rates = [line["lr"] for line in lines() if "lr" in line]
    assert rates[0] < rates[1] == pytest.approx(0.2)


def test_warm_up_raises_the_rate_to_the_schedules() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
    after = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    schedule = add_warmup(optimizer, after, 3)
    assert schedule is not None

    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()

    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.4, 0.4, 0.2])


def test_shares_follow_speed_and_keep_their_sum() -> None:
    assert divide(16, [1.0, 1.0], [8, 8]) == (8, 8)
    assert divide(16, [1.0, 3.0], [8, 8]) == (12, 4)
    assert divide(17, [1.0, 1.0, 1.0], [6, 6, 5]) == (6, 6, 5)
    assert divide(8, [1e-6, 100.0, 100.0], [3, 3, 2]) == (6, 1, 1)


@pytest.mark.parametrize(("shares", "position"), [((5, 3), 0), ((1, 7), 0), ((5, 3), 24)])
def test_shares_count_each_sample_for_one_rank(shares: tuple[int, int], position: int) -> None:
    ranks = [ResumableSampler(61, rank=rank, world_size=2) for rank in range(2)]
    for sampler in ranks:
        sampler.shares, sampler.position = shares, position

    assert sum(len(sampler) for sampler in ranks) == 61 - position
    for samples in range(20):
        assert sum(sampler.rank_count(samples) for sampler in ranks) == samples


@pytest.mark.parametrize(
    ("costs", "stages", "bounds"),
    [([1, 1, 1, 1], 2, (2,)), ([1, 1, 1, 9], 2, (3,)), ([4, 1, 1, 4], 3, (1, 3)), ([0, 2, 0, 2], 2, (2,))],
)
def test_cuts_make_the_costliest_stage_cheapest(
    costs: list[float], stages: int, bounds: tuple[int, ...]
) -> None:
    edges = (0, *even_bounds(costs, stages), len(costs))
    worst = max(sum(costs[a:b]) for a, b in pairwise(edges))
    expected = (0, *bounds, len(costs))

    assert worst == max(sum(costs[a:b]) for a, b in pairwise(expected))


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 blocks with parameters, the pipeline 3 stages"):
        even_bounds([1, 0, 1], 3)


def test_chained_stages_compute_the_same_as_the_model() -> None:
    model = make_model()
    inputs = torch.randn(8, 4)
    chain = find_chain(model, inputs)
    stages = [Stage(chain, start, end, torch.no_grad) for start, end in ((0, 2), (2, 3), (3, 5))]

    passed = inputs
    for stage in stages:
        passed = stage(passed)

    torch.testing.assert_close(passed, model(inputs), rtol=0, atol=0)


def test_model_can_declare_how_its_layers_are_split() -> None:
    class Own(nn.Sequential):
        def tensor_plan(self) -> dict[str, str]:
            return {"0": "columns", "2": "rows"}

    own = Own(*make_model())

    assert find_layers(own, 2).splits == {"0": "columns", "2": "rows"}
    own.tensor_plan = lambda: {"1": "columns"}  # type: ignore[method-assign]  # the mistake under test
    with pytest.raises(ConfigError, match="names must be Linear or Embedding layers"):
        find_layers(own, 2)


def test_norm_over_the_inner_width_prevents_a_split() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.norm, self.fc2 = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    with pytest.raises(ConfigError, match="found no layers in Normed"):
        find_layers(Normed(), 2)


def test_trained_model_gives_loss_outputs_and_weights(reporter: Reporter, tmp_path: Path) -> None:
    trainer = Trainer(TrainConfig(batch_size=8, checkpoint_every=None), reporter=reporter)
    model, data = make_model(), make_data(61)
    state = trainer.fit(model, data)

    outputs = trainer.predict(model, data)
    loss = trainer.evaluate(model, data)
    trainer.export(state, tmp_path / "weights.pt")

    torch.testing.assert_close(outputs, model(data.tensors[0]))
    assert loss == pytest.approx(nn.functional.mse_loss(outputs, data.tensors[1]).item(), rel=1e-5)
    torch.testing.assert_close(torch.load(tmp_path / "weights.pt", weights_only=True), model.state_dict())


@pytest.mark.parametrize(
    "settings", [{"cpu_offload": "optimizer"}, {"precision": "fp16"}, {"lr_warmup_steps": 4}]
)
def test_resumed_run_equals_an_uninterrupted_one(reporter: Reporter, settings: dict[str, Any]) -> None:
    def train(folder: str, steps: int, **more: Any) -> nn.Module:
        model = make_model()
        config = TrainConfig.from_mapping(
            {"batch_size": 8, "epochs": 9, "max_steps": steps, "checkpoint_dir": folder, **settings, **more}
        )
        Trainer(config, reporter=reporter).fit(model, make_data())
        return model

    through = train("whole", 7)
    train("parts", 3)
    resumed = train("parts", 7, resume=True)

    for some, other in zip(through.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(some, other)


def test_resume_continues_where_fit_stopped(reporter: Reporter, lines: Lines) -> None:
    config: dict[str, Any] = {"batch_size": 8, "checkpoint_every": None, "epochs": 9}
    Trainer(TrainConfig(**config, max_steps=3), reporter=reporter).fit(make_model(), make_data())

    state = Trainer(TrainConfig(**config, max_steps=5), reporter=reporter).resume(make_model(), make_data())

    assert state.step == 5
    assert [line["step"] for line in lines() if "loss" in line] == [1, 2, 3, 4, 5]


def test_time_in_collectives_is_counted_once_where_they_overlap() -> None:
    spans = [
        ("berth step", 100.0, 200.0),
        ("gloo:all_reduce", 90.0, 110.0),
        ("gloo:all_reduce", 120.0, 140.0),
        ("nccl:all_gather", 130.0, 150.0),
        ("aten::mm", 150.0, 190.0),
        ("gloo:send", 195.0, 260.0),
    ]

    assert busy_share(spans) == pytest.approx(0.45)
    assert busy_share([]) == 0


def test_share_of_a_step_is_the_one_of_the_events_that_the_profiler_lists() -> None:
    profile = StepProfile()
    matrix = torch.ones(200, 200)
    profile.start()
    for name in ("gloo:all_reduce", "aten::add", "gloo:send"):
        with torch.profiler.record_function(name):
            matrix = matrix @ matrix / 200

    share = profile.stop()

    listed = [(each.name, each.time_range.start, each.time_range.end) for each in profile._profile.events()]
    assert 0 < share < 1
    assert share == pytest.approx(busy_share(listed), abs=1e-3)
