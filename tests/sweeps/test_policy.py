"""Rungs and suggestions: who goes on, who is resumed, and that a suggestion follows from seed and history alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sweeps.core.flags import read_flags
from orchestrator.sweeps.core.history import History, Report, Search, Trial, TrialState
from orchestrator.sweeps.core.importance import importance
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.rungs import Verdict, next_rung, resumable, rungs_for, verdict_at
from orchestrator.sweeps.core.suggest import SAMPLERS, suggest

SPACE = read_space(read_flags(["lr=log:1e-5..1e-1", "opt=adam,sgd", "m=0..0.99@opt=sgd", "n=int:1..8"]))
RUNGS = (3, 9, 27, 52)


def history(*values: float, rung: int = 3, state: TrialState = TrialState.PAUSED) -> History:
    """One trial for each value, all at one rung."""
    trials = {number: Trial(number, {"lr": 0.1}, state, rung) for number in range(len(values))}
    return History(trials, tuple(Report(number, rung, value) for number, value in enumerate(values)))


def searched(search: Search, count: int) -> History:
    """A history of trials that were suggested one after the other; the value is the distance from lr 1e-3."""
    past = History()
    for number in range(count):
        settings = suggest(search, past, number)
        assert settings is not None
        value = abs(float(settings["lr"]) - 1e-3) + 0.01 * (settings["opt"] == "sgd")
        trial = Trial(number, settings, TrialState.ENDED, RUNGS[-1])
        past = History({**past.trials, number: trial}, (*past.reports, Report(number, RUNGS[-1], value)))
    return past


@given(st.integers(1, 10**7), st.one_of(st.none(), st.integers(1, 1000)))
def test_rungs_rise_to_the_end(longest, first):
    rungs = rungs_for(longest, first)

    assert rungs[-1] == longest
    assert list(rungs) == sorted(set(rungs))
    assert [next_rung(rungs, rung) for rung in rungs] == [*rungs[1:], None]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.data())
def test_a_third_goes_on_at_once(values, data):
    number = data.draw(st.integers(0, len(values) - 1))
    better = sum(value < values[number] for value in values)

    verdict = verdict_at(history(*values), RUNGS, number, 3, can_resume=True)

    assert (verdict == Verdict.GO_ON) == (better < max(1, len(values) // 3))


@pytest.mark.parametrize(("can_resume", "verdict"), [(True, Verdict.PAUSE), (False, Verdict.STOP)])
def test_a_script_that_cannot_resume_is_stopped_for_good(can_resume, verdict):
    assert verdict_at(history(1, 2, 3), RUNGS, 2, 3, can_resume=can_resume) == verdict


def test_a_diverged_trial_is_stopped_for_good():
    assert verdict_at(history(float("inf")), RUNGS, 0, 3, can_resume=True) == Verdict.STOP


def test_the_best_paused_trial_of_a_rung_is_resumed():
    assert resumable(history(5, 1, 3), RUNGS) == (1, 9)
    assert resumable(history(5, 1), RUNGS) is None  # the best third of two is nobody


def test_a_leg_shorter_than_a_restart_is_not_worth_it():
    assert resumable(history(5, 1, 3), RUNGS, restart_cost=6) == (1, 9)
    assert resumable(history(5, 1, 3), RUNGS, restart_cost=7) is None


def test_nobody_is_resumed_who_runs_or_ended():
    assert resumable(history(5, 1, 3, state=TrialState.RUNNING), RUNGS) is None


@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"gp"}))  # gp needs torch
def test_a_suggestion_follows_from_seed_and_history(sampler):
    search = Search(SPACE, seed=7, sampler=sampler, rungs=RUNGS)

    past = searched(search, 14)

    for number, trial in past.trials.items():
        before = History(
            {other: past.trials[other] for other in range(number)},
            tuple(report for report in past.reports if report.trial < number),
        )
        assert suggest(search, before, number) == trial.settings


@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"gp"}))
def test_every_seed_that_a_sweep_may_have_is_one_for_its_sampler(sampler):
    search = Search(SPACE, seed=2**31 - 1, sampler=sampler, rungs=RUNGS)

    assert suggest(search, searched(search, 3), 3) is not None


@pytest.mark.parametrize("sampler", ["auto", "tpe"])
def test_a_sampler_that_learns_finds_the_valley(sampler):
    values = [report.value for report in searched(Search(SPACE, 1, sampler, RUNGS), 40).reports]

    assert min(values[20:]) < 0.002
    assert sorted(values[20:])[10] < sorted(values[:12])[6]


@pytest.mark.parametrize("sampler", ["auto", "random", "grid", "tpe"])
def test_a_small_space_is_tried_once_each_and_then_no_more(sampler):
    search = Search(read_space(read_flags(["a=1,2,3", "b=bool"])), 0, sampler, RUNGS)
    trials: dict[int, Trial] = {}

    while (settings := suggest(search, History(trials), len(trials))) is not None:
        trials[len(trials)] = Trial(len(trials), settings, TrialState.FAILED)

    assert len({tuple(sorted(trial.settings.items())) for trial in trials.values()}) == len(trials) == 6


def test_failed_trials_do_not_disturb_the_search():
    past = searched(Search(SPACE, 1, "auto", RUNGS), 12)
    failed = Trial(12, past.trials[0].settings, TrialState.FAILED, 3)
    past = History({**past.trials, 12: failed}, (*past.reports, Report(12, 3, float("inf"))))

    for sampler in ("auto", "tpe"):
        assert suggest(Search(SPACE, 1, sampler, RUNGS), past, 13) is not None


def test_the_setting_that_the_best_trials_agree_on_matters_most():
    space = read_space({"lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True}, "wd": {"type": "float", "low": 0, "high": 1}, "opt": ["adam", "sgd"], "momentum": {"type": "float", "low": 0, "high": 1, "when": {"opt": "sgd"}}})  # fmt: skip
    points = [space.at(place) for place in np.random.default_rng(0).random((100, space.width))]
    points.sort(key=lambda point: abs(math.log10(float(point["lr"])) + 3) + (point["opt"] == "sgd") / 4)

    shares = importance(space, points)

    assert next(iter(shares)) == "lr"
    assert shares["opt"] > shares["wd"]
    assert shares["momentum"] < 0.1  # few of the best trials have it
    assert math.isclose(sum(shares.values()), 1)
    assert importance(space, points[:7]) == {}
