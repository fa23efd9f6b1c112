"""Goals of a sweep: fronts over several metrics, the best value over cost, and what more device time would bring."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sweeps.core.flags import read_flags
from orchestrator.sweeps.core.gain import LEAST_REPORTS, Spent, best_over_cost, expected_gain
from orchestrator.sweeps.core.history import History, Report, Search, Trial, TrialState
from orchestrator.sweeps.core.pareto import front
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.suggest import suggest

SPACE = read_space(read_flags(["lr=log:1e-5..1e-1", "width=int:8..512"]))
POINTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=20)


@given(POINTS)
def test_the_front_is_what_no_point_beats(points):
    def beats(one, other):
        return all(a <= b for a, b in zip(one, other, strict=True)) and one != other

    expected = [at for at, point in enumerate(points) if not any(beats(other, point) for other in points)]

    assert front(points) == expected


def test_a_trial_without_a_value_is_never_on_the_front():
    assert front([(0.0, math.inf), (1.0, 1.0), (math.nan, 0.0)]) == [1]


def played(search: Search, count: int) -> History:
    """Trials whose loss falls with the width, which is the second metric, and has a valley at lr 1e-3."""
    past = History()
    for number in range(count):
        settings = suggest(search, past, number)
        assert settings is not None
        width = float(settings["width"])
        loss = (math.log10(float(settings["lr"])) + 3) ** 2 + 100 / width
        trial = Trial(number, settings, TrialState.ENDED)
        past = History({**past.trials, number: trial}, (*past.reports, Report(number, 1, loss, (width,))))
    return past


@pytest.mark.parametrize("sampler", ["auto", "nsga2", "tpe"])
def test_a_sampler_of_several_metrics_covers_the_front(sampler):
    search = Search(SPACE, 3, sampler, (1,), metrics=2)

    past = played(search, 48)

    costs = [(report.value, *report.further) for report in past.reports]
    random = played(Search(SPACE, 3, "random", (1,), metrics=2), 48)
    assert hypervolume(costs) > hypervolume([(one.value, *one.further) for one in random.reports])
    assert suggest(search, past, 48) == suggest(search, past, 48)


def hypervolume(costs: list[tuple[float, ...]]) -> float:
    """The part of the box up to loss 20 and width 512 that the front leaves behind it."""
    area, ceiling = 0.0, 512.0
    for loss, width in sorted(costs[at] for at in front(costs)):
        area += max(0.0, 20 - loss) * max(0.0, ceiling - width)
        ceiling = min(ceiling, width)
    return area


def test_trials_of_earlier_sweeps_spare_the_sampler_its_start():
    earlier = played(Search(SPACE, 1, "random", (1,)), 30)
    earlier = History(
        {-1 - number: Trial(-1 - number, one.settings, one.state) for number, one in earlier.trials.items()},
        tuple(Report(-1 - one.trial, one.rung, one.value) for one in earlier.reports),
    )

    cold = suggest(Search(SPACE, 3, "auto", (1,)), History(), 0)
    warm = suggest(Search(SPACE, 3, "auto", (1,), earlier=earlier), History(), 0)

    assert cold is not None
    assert warm is not None
    assert abs(math.log10(float(warm["lr"])) + 3) < min(1.0, abs(math.log10(float(cold["lr"])) + 3))


def test_the_best_value_follows_what_was_spent_and_not_the_order_of_the_ends():
    # Trial 0 trains long and ends last, but its first value came first.
    reports = [Report(0, 1, 3.0), Report(1, 1, 2.0), Report(0, 10, 1.0)]

    points = best_over_cost(reports, {0: 100.0, 1: 20.0, 2: 30.0})

    assert points == [(10.0, 3.0), (30.0, 2.0), (120.0, 1.0), (150.0, 1.0)]


def test_failed_trials_cost_device_time_and_bring_no_value():
    assert best_over_cost([Report(0, 1, math.inf)], {0: 5.0}) == []
    assert best_over_cost([Report(0, 1, math.inf), Report(1, 1, 2.0)], {0: 5.0, 1: 5.0}) == [(10.0, 2.0)]


def falling(hours: int, floor: float = 0.0) -> list[Spent]:
    """A search whose best value falls as its cost grows, until it stands still."""
    return [Spent(3600.0 * hour, max(floor, 1 / hour)) for hour in range(1, hours + 1)]


def test_the_expected_gain_falls_as_the_curve_flattens():
    gains = [expected_gain(falling(hours), 3600 * 10) or math.nan for hours in (20, 40, 80)]

    assert gains[0] > gains[1] > gains[2] > 0
    # 1/40 would be 1/50 after ten more hours: what is expected is no less than that, and of its order.
    assert 1 / 40 - 1 / 50 <= gains[1] < 5 * (1 / 40 - 1 / 50)


def test_nothing_is_expected_of_a_curve_that_stands_still():
    assert expected_gain(falling(80, floor=0.2), 3600 * 10) == 0


def test_a_young_sweep_has_no_expected_gain():
    assert expected_gain(falling(LEAST_REPORTS - 1), 60) is None
    assert expected_gain(falling(LEAST_REPORTS), 3600 * 1000) is None  # it has spent a hundredth of that
