"""F84: when strangers take the memory of a job's device, its reason says so and it is tried again."""

import time
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.agent.watches.memory import blame_others
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.live import readings as live
from orchestrator.models import ExitKind, JobState, Lease
from orchestrator.spec.job_spec import GIB


@pytest.fixture
def show(home):
    """Readings of the first device: what a stranger holds there."""

    def write(foreign_gib: float, user: str | None = "carl") -> None:
        entry: Any = {
            "id": "sim-0",
            "used_bytes": 70 * GIB,
            "foreign_bytes": round(foreign_gib * GIB),
            "processes": [{"pid": 7, "used_bytes": round(foreign_gib * GIB), "user": user, "job": None}],
        }
        readings = live.NowReadings(
            seq=1, taken_at=time.time(), stream="s", problem=None, simulated=False, host={}, devices=[entry]
        )
        live.write_now(readings)

    return write


def out_of_memory(kind: ExitKind = ExitKind.OOM_GPU) -> Ending:
    return Ending(kind=kind, how=sentence_only("Rank 0 ran out of GPU memory."), at=timezone.now())


@pytest.mark.code("F84")
def test_external_process_that_grew_is_named_and_the_job_is_retried(make_attempt, show):
    attempt = make_attempt(state=JobState.RUNNING)
    show(30)

    job = lifecycle.end(attempt, blame_others(attempt, out_of_memory()))

    assert job.state == JobState.BACKOFF
    assert "simulated GPU 0 also held 30.0 GiB of carl, not of Berth's jobs" in job.reason
    assert job.claim_floor_bytes is None


@pytest.mark.code("F84")
def test_job_that_had_all_its_claimed_memory_blames_no_other_process(make_attempt, show):
    attempt = make_attempt(state=JobState.RUNNING, memory_bytes=20 * GIB)
    Lease.objects.update(peak_bytes=20 * GIB)
    show(30)

    job = lifecycle.end(attempt, blame_others(attempt, out_of_memory()))

    assert "carl" not in job.reason
    assert job.claim_floor_bytes == 30 * GIB


@pytest.mark.parametrize("foreign_gib", [0, 0.06])
def test_idle_external_process_is_not_blamed(foreign_gib, make_attempt, show):
    attempt = make_attempt(state=JobState.RUNNING)
    show(foreign_gib)

    assert lifecycle.end(attempt, blame_others(attempt, out_of_memory())).state == JobState.FAILED


def test_other_ends_are_left_as_they_are(make_attempt, show):
    attempt = make_attempt(state=JobState.RUNNING)
    show(30)
    ending = out_of_memory(ExitKind.USER_ERROR)

    assert blame_others(attempt, ending) is ending


def test_no_process_is_blamed_without_a_reading(make_attempt, home):
    attempt = make_attempt(state=JobState.RUNNING)
    ending = out_of_memory()

    assert blame_others(attempt, ending) is ending
