"""F85: a device that is slowed down is told to the jobs on it; nothing is stopped."""

import time

import pytest

from orchestrator.agent.watches.devices import SlowDevices
from orchestrator.devices.types import Reading
from orchestrator.models import JobState, Lease
from orchestrator.spec.job_spec import GIB


@pytest.fixture
def attempt(make_attempt, make_device):
    return make_attempt(state=JobState.RUNNING, devices=[make_device(0), make_device(1)], gpus=2)


def look(watch: SlowDevices, slowed: str | None, now_s: float) -> None:
    readings = [
        Reading(device_id="sim-1", taken_at=time.time(), used_bytes=GIB, total_bytes=80 * GIB, slowed=slowed)
    ]
    watch.note(readings, list(Lease.objects.active().select_related("attempt__job", "device")), now_s)


def said(attempt) -> list[str]:
    return [event.reason for event in attempt.job.events.filter(actor="health")]


@pytest.mark.code("F85")
def test_slow_gpu_of_a_gang_is_reported_once_and_stops_nothing(attempt):
    watch = SlowDevices()
    for now_s in (0, 10, 30, 60, 600):
        look(watch, "heat", now_s)

    attempt.job.refresh_from_db()
    assert said(attempt) == ["simulated GPU 1 is slowed down by heat; all ranks wait for the slowest."]
    assert attempt.job.state == JobState.RUNNING


@pytest.mark.code("F85")
def test_short_dip_of_the_clocks_is_not_reported(attempt):
    watch = SlowDevices()
    for now_s, slowed in ((0, "heat"), (20, "heat"), (25, None), (40, "heat"), (60, "heat")):
        look(watch, slowed, now_s)

    assert said(attempt) == []
