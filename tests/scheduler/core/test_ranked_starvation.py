"""A job for the whole server starts and ends although small jobs never cease to come."""

from random import Random

import pytest

from orchestrator.scheduler.core import Policy
from orchestrator.scheduler.simulator.replay import Knowledge, replay
from orchestrator.scheduler.simulator.trace import POOL, TraceJob
from tests.scheduler.core.states import gpus

HOUR_S = 3600.0
BIG = "big"
DAYS_S = 86400.0


def stream(days: int, load: float, seed: int) -> list[TraceJob]:
    """Jobs of one GPU and up to an hour that ask for ``load`` x 8 GPUs, and one of eight GPUs among them."""
    order = Random(seed)  # noqa: S311 - a simulation, not a secret
    jobs: list[TraceJob] = []
    now = 0.0
    while now < days * DAYS_S:
        length_s = order.uniform(60, HOUR_S)
        jobs.append(_job(f"{len(jobs)}", now, 1, length_s))
        now += order.expovariate(load * 8 / (HOUR_S / 2))
    jobs.append(_job(BIG, 6 * HOUR_S, 8, HOUR_S))
    return sorted(jobs, key=lambda job: job.arrival_s)


def _job(name: str, arrival_s: float, count: int, length_s: float) -> TraceJob:
    return TraceJob(name, arrival_s, count, 1000, None, length_s, 2 * length_s, f"user-{len(name)}", 0)


KNOWN = {
    "all report": Knowledge(predict=True),
    "half report": Knowledge(progress="half", predict=True),
    "none reports, equal limits": Knowledge(progress="none", limits="equal", predict=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("knowledge", KNOWN.values(), ids=KNOWN.keys())
@pytest.mark.parametrize("load", [0.9, 1.1])
def test_the_big_job_starts_within_its_promised_ranges_and_ends(knowledge: Knowledge, load: float):
    devices = gpus(8, pool=POOL)

    outcome = replay(stream(4, load, seed=7), devices, Policy.progress_aware(), knowledge)

    mine = [segment for segment in outcome.segments if segment.job_id == BIG]
    estimates = [estimate for estimate in outcome.estimates if estimate.job_id == BIG]
    assert mine[0].start_s - 6 * HOUR_S <= HOUR_S
    assert all(estimate.held for estimate in estimates[:1])
    if load < 1:  # else it is too far back in the line to be told at once
        assert any(estimate.made_s > mine[0].end_s - 1 for estimate in estimates), (
            "it was told when it goes on"
        )
        assert all(estimate.held for estimate in estimates)
    if knowledge.progress == "all":  # twice overdue it goes first, whoever comes
        ratio = Policy.progress_aware().ageing_ratio
        assert ratio is not None
        length_s = 1.15 * HOUR_S  # with its restarts
        assert mine[-1].end_s - 6 * HOUR_S <= 2 * ratio * length_s + 2 * HOUR_S < 4 * DAYS_S


@pytest.mark.slow
@pytest.mark.parametrize("knowledge", KNOWN.values(), ids=KNOWN.keys())
def test_big_job_gets_a_slot_where_no_job_may_be_stopped(knowledge: Knowledge):
    stubborn = Knowledge(
        progress=knowledge.progress, limits=knowledge.limits, predict=True, preemptible=False
    )

    outcome = replay(stream(3, 1.1, seed=8), gpus(8, pool=POOL), Policy.progress_aware(), stubborn)

    mine = [segment for segment in outcome.segments if segment.job_id == BIG]
    assert outcome.restarts == 0
    assert len(mine) == 1
    assert mine[0].start_s <= 6 * HOUR_S + 2 * DAYS_S
