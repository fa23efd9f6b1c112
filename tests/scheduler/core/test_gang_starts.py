"""A gang that newcomers overtake is told when it starts at the latest, or why nobody knows."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.scheduler.core import Policy, QueuedJob, RunningJob, State, Wait, decide
from tests.scheduler.core.states import NOW, gpus, queued, running, sentence_of, state

POLICY = Policy.progress_aware()
HOUR_S = 3600.0
WIDE: dict[str, Any] = {
    "gpus": 8,
    "ran_s": 600.0,
    "attained_gpu_s": 4800.0,
    "progress_done": 600.0,
    "progress_total": 600.0 + HOUR_S,
    "step_s": 1.0,
}


def small(index: int, **facts: Any) -> RunningJob:
    known = {"ran_s": 600.0, "progress_done": 600.0, "progress_total": 900.0, "step_s": 1.0}
    return running(f"small-{index}", f"gpu-{index}", submitted=NOW - 700, **{**known, **facts})


def wait_of(name: str, snapshot: State) -> Wait:
    return next(wait for wait in decide(snapshot, POLICY).wait if wait.job_id == f"id-{name}")


def full(*jobs: QueuedJob | RunningJob, **facts: Any) -> State:
    """Eight small jobs run, and the wide one came an hour ago."""
    wide = queued("wide", submitted=NOW - HOUR_S, **WIDE)
    return state(gpus(8), wide, *(small(index, **facts) for index in range(8)), *jobs)


def test_latest_start_of_a_gang_is_when_it_passes_later_jobs():
    wait = wait_of("wide", full())

    ratio = POLICY.ageing_ratio
    assert ratio is not None
    assert wait.start_latest is not None
    in_front = NOW - HOUR_S + 600 + 2 * ratio * (600 + HOUR_S)
    assert wait.start_earliest == NOW
    assert in_front <= wait.start_latest <= in_front + 600
    assert "Expected within" in sentence_of(wait)


def test_at_that_moment_it_is_served_though_trials_wait():
    moment = wait_of("wide", full()).start_latest
    assert moment is not None
    newcomers = [queued(f"new-{number}", submitted=moment - 60 + number) for number in range(20)]
    snapshot = replace(full(*newcomers), now=moment)

    decisions = decide(snapshot, POLICY)

    assert {preempt.for_job_id for preempt in decisions.preempt} == {"id-wide"}


def test_newcomers_do_not_change_what_it_is_told():
    told = wait_of("wide", full()).start_latest
    newcomers = [queued(f"new-{number}", submitted=NOW - 1, ran_s=1.0) for number in range(20)]
    # Trials fill the first predicted places.
    asking = replace(POLICY, predicted_jobs=40)
    waits = {wait.job_id: wait for wait in decide(full(*newcomers), asking).wait}

    assert waits["id-wide"].start_latest == told


def test_a_pass_is_due_when_it_goes_in_front():
    latest, wake = wait_of("wide", full()).start_latest, decide(full(), POLICY).next_wake

    assert wake is not None
    assert latest is not None
    assert latest - 600 <= wake <= latest


def test_work_that_came_earlier_is_in_the_range():
    told = wait_of("wide", full()).start_latest
    earlier = queued("earlier", submitted=NOW - 2 * HOUR_S, **{**WIDE, "progress_total": 600 + 10 * HOUR_S})

    later = wait_of("wide", full(earlier)).start_latest

    assert told is not None
    assert later is not None
    assert later - told >= 10 * HOUR_S


@pytest.mark.parametrize(
    "facts", [{"progress_total": None, "preemptible": False}, {"step_s": None, "priority": 90}]
)
def test_endless_job_ahead_of_a_gang_is_named(facts: dict[str, Any]):
    wait = wait_of("wide", full(**facts))

    assert (wait.start_earliest, wait.start_latest) == (None, None)
    assert "When is not known: small-0 has no time limit" in sentence_of(wait)


def test_behind_silent_jobs_that_stay_the_guess_is_wide_until_some_were_checked():
    stays = {"progress_done": None, "progress_total": None, "step_s": None, "preemptible": False}
    snapshot = full(queued("next", submitted=NOW), **stays)

    guessed = wait_of("next", snapshot)
    learned = wait_of("next", replace(snapshot, start_errors=(0.5, 2.0)))

    assert guessed.start_latest is not None
    assert learned.start_latest is not None
    assert learned.start_latest < guessed.start_latest
