"""A plan's regret is told apart from the noise in which it is measured."""

import random

import pytest

from benchmarks.regret import judge


class Dice(random.Random):
    """For noise, not for secrets."""


def measure(dice: Dice, step_s: float, rounds: int = 60) -> list[float]:
    return [step_s * dice.lognormvariate(0, 0.1) for _ in range(rounds)]


def test_the_luckiest_of_many_equal_rivals_makes_no_regret() -> None:
    told = []
    for seed in range(40):
        dice = Dice(seed)
        chosen, twin, *rivals = (measure(dice, 1.0) for _ in range(12))
        told.append(judge(chosen, twin, rivals).to_rival)

    assert sum(told) / len(told) == pytest.approx(1.0, abs=0.01)


def test_a_choice_that_is_a_fifth_slower_is_found_out() -> None:
    dice = Dice(1)
    verdict = judge(measure(dice, 1.2), measure(dice, 1.2), [measure(dice, 1.4), measure(dice, 1.0)])

    assert verdict.rival == 1
    assert verdict.to_rival == pytest.approx(1.2, abs=0.06)
    assert verdict.noise < 0.05


def test_noise_that_lasts_through_all_rounds_is_seen_in_the_copy() -> None:
    dice = Dice(2)
    verdict = judge(measure(dice, 1.1), measure(dice, 1.0), [measure(dice, 1.0)])

    assert verdict.noise == pytest.approx(0.1, abs=0.05)
