"""The replay of sweeps: legs cost what they should, and the policy learns on a table that anybody can solve."""

import numpy as np
import pytest

from benchmarks.sweeps import Leg, Ours, Run, read_tables, replay


@pytest.fixture
def tables(tmp_path):
    """One task in which the learning rate decides, and all curves rise alike."""
    random = np.random.default_rng(0)
    rate, width = 10 ** random.uniform(-4, 0, 200), random.integers(8, 65, 200)
    end = 90 - 12 * (np.log10(rate) + 2) ** 2
    epochs = np.arange(1, 28)
    accuracy = end[:, None] * (1 - np.exp(-epochs[None] / 4))
    path = tmp_path / "table.npz"
    np.savez(path, accuracy=accuracy[None], tasks=["one"], rate=rate, width=width)
    return read_tables(path)


class Script:
    """A policy that asks for given legs, and notes what it is told."""

    def __init__(self, *legs: Leg) -> None:
        self.legs = list(legs)
        self.told: list[tuple[int, int, float]] = []

    def ask(self):
        return self.legs.pop(0) if self.legs else None

    def tell(self, configuration, epoch, regret):
        self.told.append((configuration, epoch, regret))


def test_a_resumed_trial_costs_its_restart():
    regret = np.array([[0.5, 0.4, 0.3]])

    seen = replay(Script(Leg(0, 0, 1, True), Leg(0, 1, 3, False)), regret, workers=1, horizon=9, restart=2)

    assert seen == [(1.0, 0.5), (5.0, 0.3)]


def test_ranges_and_scales_come_from_the_table(tables):
    rate, width = tables[0].space.settings

    assert (rate.type, rate.log) == ("float", True)
    assert (width.type, width.log) == ("int", False)


def test_our_policy_finds_the_best_of_an_easy_table(tables):
    run = Run(tables, workers=2, seeds=2, budgets=(1, 4))

    regret = run.mean_regret("ours", lambda table, seed: Ours(table, seed, 2.0))

    assert regret[1] < 0.02
    assert regret[1] <= regret[0]


def test_no_configuration_is_trained_twice(tables):
    policy = Ours(tables[0], 0, 2.0)

    replay(policy, tables[0].regret, workers=3, horizon=100, restart=2.0)

    legs = [(report.trial, report.rung) for report in policy.history.reports]
    assert len(legs) == len(set(legs))
    assert len(set(policy.configurations.values())) == len(policy.configurations)
