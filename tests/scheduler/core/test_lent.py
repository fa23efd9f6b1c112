"""Pools whose devices another system lends: what waits for it, what never fits, and the end of an allocation."""

import pytest

from orchestrator.scheduler.core import (
    Booking,
    Constraints,
    LentPool,
    Policy,
    Vacate,
    WaitCode,
    decide,
)
from tests.scheduler.core.states import GIB, NOW, gpus, queued, running, sentence_of, state

HOUR = 3600.0
POLICIES = pytest.mark.parametrize("policy", [Policy(), Policy.progress_aware()], ids=["in turn", "ranked"])
WAITING = {"system": "Slurm", "waiting": 1, "reason": "Priority", "expected_s": NOW + 360}


def lent(**facts: object) -> LentPool:
    return LentPool("default", 4, 3 * HOUR, facts or WAITING)


def end(in_s: float, *device_ids: str, margin_s: float = 600.0) -> Booking:
    """The end of the allocation that has these devices."""
    until = NOW + in_s
    return Booking(
        id="pilot 1",
        name="the end of cluster-slurm-1",
        pool="default",
        start=until - margin_s,
        until=until,
        device_ids=device_ids or ("gpu-0",),
        ends_there=True,
    )


@POLICIES
def test_job_of_an_empty_pool_waits_for_an_allocation_with_the_reason_of_its_system(policy):
    (wait,) = decide(state((), queued("a", gpus=2), lent=(lent(),)), policy).wait

    assert wait.code == WaitCode.LENT
    assert sentence_of(wait) == "Waits for an allocation of Slurm (Priority), expected in 6 min."


@POLICIES
def test_job_larger_than_an_allocation_never_fits(policy):
    (wait,) = decide(state((), queued("a", gpus=5), lent=(lent(),)), policy).wait

    assert wait.code == WaitCode.IMPOSSIBLE
    assert "has 4. Ask for fewer" in sentence_of(wait)


@POLICIES
def test_job_that_needs_this_server_never_fits_a_lent_pool(policy):
    here = Constraints(only_nodes=("local",))

    (wait,) = decide(state((), queued("a", constraints=here), lent=(lent(),)), policy).wait

    assert wait.code == WaitCode.IMPOSSIBLE
    assert sentence_of(wait).startswith("Needs data, packages, a Python or a socket of this server")


@POLICIES
def test_job_with_packages_asks_for_an_allocation_where_these_can_be_built(policy):
    where = Constraints(only_nodes=("local",), for_packages=True)

    (wait,) = decide(state((), queued("a", constraints=where), lent=(lent(),)), policy).wait

    assert wait.code == WaitCode.LENT


@POLICIES
def test_job_that_waits_for_another_asks_for_nothing_yet(policy):
    (wait,) = decide(state((), queued("a", waits_for=("b",)), lent=(lent(),)), policy).wait

    assert wait.code == WaitCode.DEPENDS


@POLICIES
def test_job_wider_than_what_is_there_waits_for_another_allocation(policy):
    given = state(gpus(1), queued("a", gpus=2), lent=(lent(),))

    assert decide(given, policy).wait[0].code == WaitCode.LENT


@POLICIES
def test_job_that_needs_more_memory_than_the_system_has_never_fits(policy):
    given = state(gpus(1), queued("a", memory_bytes=500 * GIB), lent=(lent(),))

    assert decide(given, policy).wait[0].code == WaitCode.IMPOSSIBLE


@POLICIES
def test_job_starts_on_what_is_lent(policy):
    given = state(gpus(1), queued("a"), lent=(lent(),), bookings=(end(HOUR),))

    assert [start.job_id for start in decide(given, policy).start] == [queued("a").id]


@POLICIES
def test_job_whose_time_limit_is_longer_than_the_allocation_waits_for_a_fresh_one(policy):
    job = queued("a", time_limit_s=2 * HOUR, preemptible=False)

    (wait,) = decide(state(gpus(1), job, lent=(lent(),), bookings=(end(HOUR),)), policy).wait

    assert wait.code == WaitCode.LENT


@POLICIES
def test_job_longer_than_any_allocation_is_told_what_would_help(policy):
    job = queued("a", time_limit_s=9 * HOUR, preemptible=False)

    (wait,) = decide(state(gpus(1), job, lent=(lent(),), bookings=(end(HOUR),)), policy).wait

    assert sentence_of(wait).startswith("Needs 9 h, but jobs can use an allocation of Slurm for 3 h.")


@POLICIES
def test_job_that_continues_from_checkpoints_starts_whatever_its_limit(policy):
    job = queued("a", time_limit_s=9 * HOUR)

    assert decide(state(gpus(1), job, bookings=(end(HOUR),)), policy).start


@POLICIES
@pytest.mark.parametrize("preemptible", [True, False])
def test_jobs_leave_before_the_end_of_the_allocation(policy, preemptible):
    job = running("a", "gpu-0", preemptible=preemptible)

    assert not decide(state(gpus(1), job, bookings=(end(601),)), policy).vacate
    leaving = decide(state(gpus(1), job, bookings=(end(600),)), policy).vacate

    assert leaving == (Vacate(job.id, "the end of cluster-slurm-1", ends_there=True),)


@POLICIES
def test_job_that_ends_in_time_stays(policy):
    job = running("a", "gpu-0", progress_done=90.0, progress_total=100.0, step_s=1.0)

    assert not decide(state(gpus(1), job, bookings=(end(300),)), policy).vacate


@POLICIES
def test_no_job_starts_shortly_before_the_others_leave(policy):
    given = state(gpus(1), queued("a"), lent=(lent(),), bookings=(end(600 + 100),))

    assert not decide(given, policy).start


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"system": "Slurm", "waiting": 0}, "Waits for Slurm, which is asked for an allocation."),
        ({"system": "Slurm", "waiting": 2, "most": 2}, "Waits for Slurm: all 2 allocations of the pool"),
        ({"system": "Slurm", "waiting": 0, "most": 0}, "Waits for Slurm, which an administrator has told"),
        (
            {"system": "Slurm", "waiting": 0, "problem": "sbatch: error: invalid partition specified: nope"},
            "Waits for Slurm, which refuses an allocation: sbatch: error: invalid partition specified: nope",
        ),
    ],
)
def test_wait_says_what_is_known_of_the_allocation(facts, sentence):
    (wait,) = decide(state((), queued("a"), lent=(lent(**facts),))).wait

    assert sentence_of(wait).startswith(sentence)
