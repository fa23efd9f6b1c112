"""How often checkpoints are saved where nobody said it, and what is said of a model that is another."""

import pytest
import torch
from torch import nn

from training.checkpoint.differences import describe_differences
from training.checkpoint.policy import FIRST_S, LEAST_S, SavePolicy


def simulate(policy: SavePolicy, *, step_s: float, stall_s: float, slower: float, writes_s: float) -> float:
    """Train for an hour and a half; the share of the last hour that saves cost, in percent."""
    now_s, write_until_s, cost_s, counted_from_s = 0.0, 0.0, 0.0, 1800.0
    while now_s < counted_from_s + 3600:
        writing = now_s < write_until_s
        took_s = step_s * (slower if writing else 1)
        now_s += took_s
        policy.note_step(took_s, writing=writing)
        cost_s += (took_s - step_s) * (now_s > counted_from_s)
        if policy.is_due(now_s):
            now_s += stall_s
            cost_s += stall_s * (now_s > counted_from_s)
            policy.note_save(stall_s, now_s)
            write_until_s = now_s + writes_s
    return 100 * cost_s / 3600


@pytest.mark.parametrize(
    ("step_s", "stall_s", "slower", "writes_s"),
    [(0.05, 0.02, 1.0, 0.5), (0.05, 0.3, 1.5, 3.0), (1.0, 2.0, 1.2, 20.0), (0.01, 0.001, 2.0, 0.1)],
)
def test_saves_cost_at_most_two_percent_of_the_time(
    step_s: float, stall_s: float, slower: float, writes_s: float
) -> None:
    policy = SavePolicy(now_s=0.0)

    percent = simulate(policy, step_s=step_s, stall_s=stall_s, slower=slower, writes_s=writes_s)

    assert 0 < percent <= 2


def test_costly_saves_still_respect_the_longest_interval() -> None:
    policy = SavePolicy(now_s=0.0, most_lost_s=120)

    policy.note_save(30.0, 0.0)

    assert policy.interval_s == 120


def test_first_save_is_due_after_half_a_minute() -> None:
    policy = SavePolicy(now_s=100.0)

    assert (policy.is_due(100 + FIRST_S - 1), policy.is_due(100 + FIRST_S)) == (False, True)


@pytest.mark.parametrize(("step_s", "interval_s"), [(0.5, 20.0), (0.8, 40.0)])
def test_a_save_costs_its_stall_and_what_steps_take_longer_while_it_is_written(
    step_s: float, interval_s: float
) -> None:
    policy = SavePolicy(most_percent=1, now_s=0.0)
    policy.note_step(0.6, writing=False)

    policy.note_save(0.2, 0.0)
    policy.note_step(step_s, writing=True)

    assert policy.interval_s == pytest.approx(interval_s)


def test_cheap_saves_respect_the_shortest_interval() -> None:
    policy = SavePolicy(now_s=0.0)

    policy.note_save(0.0001, 0.0)

    assert policy.interval_s == LEAST_S


def test_differences_to_another_model_are_listed_by_name() -> None:
    saved = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).state_dict()
    own = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 1)).state_dict()

    assert describe_differences(saved, own) == [
        "0.bias is in the checkpoint, and not in the model",
        "1.weight is in the checkpoint, and not in the model",
        "1.bias is in the checkpoint, and not in the model",
        "2.weight is in the model, and not in the checkpoint",
        "2.bias is in the model, and not in the checkpoint",
        "0.weight has the shape [3, 2] in the checkpoint and [4, 2] in the model",
    ]
    assert describe_differences(saved, saved) == []


def test_eight_differences_are_listed_and_more_are_counted() -> None:
    saved = {f"layer{number}": torch.ones(1) for number in range(50)}
    eight = dict(list(saved.items())[:8])

    assert len(describe_differences(eight, {})) == 8
    assert describe_differences(eight, {})[-1] == "layer7 is in the checkpoint, and not in the model"
    assert describe_differences(saved, {})[-2:] == [
        "layer7 is in the checkpoint, and not in the model",
        "and 42 more",
    ]
