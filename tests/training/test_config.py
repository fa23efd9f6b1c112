"""Settings that cannot work are refused when they are given, by name."""

from typing import Any

import pytest

from training.config import ConfigError, TrainConfig


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"strategy": "magic"}, "strategy is 'magic'; it can be auto, single, ddp."),
        ({"precision": "fp8"}, "precision is 'fp8'; it can be fp32, bf16."),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1."),
        ({"batch_size": True}, "batch_size is True; it must be a whole number."),
        ({"batch_size": 1.5}, "batch_size is 1.5; it must be a whole number."),
        ({"max_steps": -1}, "max_steps is -1; it must be at least 1."),
        ({"max_grad_norm": 0}, "max_grad_norm is 0; it must be finite and above 0."),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be finite and above 0."),
        ({"checkpoint_every": "soon"}, "checkpoint_every is 'soon'; it can be a number of steps, or seconds"),
        ({"checkpoint_every": "-1s"}, "checkpoint_every is '-1s'"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"resume": 1.5}, "resume is 1.5"),
        ({"batchsize": 3}, "unknown setting batchsize; there are strategy, precision, batch_size"),
    ],
)
def test_b37_a_setting_that_cannot_work_is_refused(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig.from_mapping(setting)

    assert str(refused.value).startswith(sentence)


def test_an_interval_is_steps_or_seconds() -> None:
    by_steps, by_clock = TrainConfig(checkpoint_every=50), TrainConfig(checkpoint_every="1.5s")

    assert (by_steps.checkpoint_every_steps, by_steps.checkpoint_every_s) == (50, None)
    assert (by_clock.checkpoint_every_steps, by_clock.checkpoint_every_s) == (None, 1.5)


def test_the_ranks_that_there_are_choose_the_strategy() -> None:
    assert TrainConfig().choose_strategy(1) == "single"
    assert TrainConfig().choose_strategy(2) == "ddp"
    with pytest.raises(ConfigError, match="torchrun started 2 ranks"):
        TrainConfig(strategy="single").choose_strategy(2)


def test_a_run_resumes_by_itself_only_where_berth_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not TrainConfig().resumes
    assert TrainConfig(resume=True).resumes
    monkeypatch.setenv("BERTH_CHECKPOINT_DIR", "/somewhere")
    assert TrainConfig().resumes
    assert not TrainConfig(resume=False).resumes
