"""Jobs that hold memory beyond their claims: room for others that have none elsewhere, and nobody's otherwise."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.scheduler.core import Policy, Preempt, RunningJob, Share, WaitCode, decide
from tests.scheduler.core.states import GIB, gpu, gpus, queued, running, state

RANKED = Policy.progress_aware()


def beyond(name: str, device: str, claim_gib: int, held_gib: int, **facts: Any) -> RunningJob:
    """A job that claims less than it holds."""
    job = running(name, device, memory_bytes=claim_gib * GIB, ran_s=10_000.0, **facts)
    return replace(job, shares=(Share(device, claim_gib * GIB, held_gib * GIB),))


def given_back(job: RunningJob, for_id: str) -> Preempt:
    return Preempt(job.id, for_id, job.shares[0])


def test_job_beyond_its_claim_leaves_for_one_that_the_claims_have_room_for():
    wide = beyond("wide", "gpu-0", 20, 70)

    decisions = decide(state(gpus(1), wide, queued("new", memory_bytes=40 * GIB)), RANKED)

    assert decisions.preempt == (given_back(wide, "id-new"),)
    assert decisions.start == ()  # the memory is free once it has left
    assert decisions.reserve[0].device_ids == ("gpu-0",)
    assert decisions.wait[0].code is WaitCode.MEMORY


def test_cleared_job_starts_once_the_other_has_left():
    wide = beyond("wide", "gpu-0", 20, 70)
    first = decide(state(gpus(1), wide, queued("new", memory_bytes=40 * GIB)), RANKED)
    back = queued("wide", memory_bytes=20 * GIB, ran_s=10_000.0, owner="bob")

    then = decide(state(gpus(1), back, queued("new", memory_bytes=40 * GIB)), RANKED)

    assert first.preempt
    assert {start.job_id for start in then.start} == {"id-new", "id-wide"}  # both, by what they claim


def test_job_beyond_its_claim_stays_while_another_device_has_room():
    wide = beyond("wide", "gpu-0", 20, 70)

    decisions = decide(state(gpus(2), wide, queued("new", memory_bytes=40 * GIB)), RANKED)

    assert decisions.preempt == ()
    assert decisions.start[0].devices == (Share("gpu-1", 40 * GIB),)


def test_job_beyond_its_claim_stays_where_there_is_room_beside_what_it_holds():
    wide = beyond("wide", "gpu-0", 20, 40)

    decisions = decide(state(gpus(1), wide, queued("new", memory_bytes=40 * GIB)), RANKED)

    assert (decisions.preempt, len(decisions.start)) == ((), 1)


@pytest.mark.parametrize("preemptible", [True, False])
def test_job_beyond_its_claim_goes_before_jobs_that_hold_what_they_asked_for(preemptible):
    wide = beyond("wide", "gpu-0", 20, 60, preemptible=preemptible)
    modest = running("modest", "gpu-0", memory_bytes=20 * GIB, ran_s=10_000.0)

    decisions = decide(state(gpus(1), wide, modest, queued("new", memory_bytes=30 * GIB)), RANKED)

    assert decisions.preempt == (given_back(wide, "id-new"),)


def test_only_as_many_leave_as_are_needed_the_largest_first():
    small, large = beyond("small", "gpu-0", 10, 15), beyond("large", "gpu-0", 10, 45)

    decisions = decide(state(gpus(1), small, large, queued("new", memory_bytes=30 * GIB)), RANKED)

    assert decisions.preempt == (given_back(large, "id-new"),)


def test_job_that_the_claims_leave_no_room_for_clears_nobody_by_this_rule():
    wide = beyond("wide", "gpu-0", 50, 70, preemptible=False)

    decisions = decide(state(gpus(1), wide, queued("new", memory_bytes=40 * GIB)), RANKED)

    assert decisions.preempt == ()


def test_external_memory_counts_beside_what_is_held():
    device = gpu(0, foreign_bytes=30 * GIB, used_bytes=60 * GIB)
    wide = beyond("wide", "gpu-0", 10, 30)

    fits = decide(state((device,), wide, queued("new", memory_bytes=20 * GIB)), RANKED)
    tight = decide(state((device,), wide, queued("new", memory_bytes=35 * GIB)), RANKED)

    assert (len(fits.start), fits.preempt) == (1, ())
    assert tight.preempt == (given_back(wide, "id-new"),)
