"""What would start a waiting job now."""

import pytest

from orchestrator.models import Health, JobState
from orchestrator.scheduler.forecast import whatif
from orchestrator.scheduler.forecast.planning import Outlook, look_ahead
from orchestrator.scheduler.forecast.whatif import Change, Search


@pytest.fixture
def devices(make_device):
    return [make_device(index) for index in range(4)]


def test_the_largest_number_of_devices_that_is_free_is_offered(devices, make_job, make_attempt):
    make_attempt(state=JobState.RUNNING, devices=devices[:2], gpus=2)
    job = make_job(gpus=4)

    assert look_ahead(job, job.owner).search.changes == [Change("gpus", 2)]


def test_less_memory_is_offered_where_a_device_is_shared(make_device, make_job, make_attempt):
    make_attempt(
        state=JobState.RUNNING, devices=[make_device(0)], memory_bytes=60 * 2**30, spec={"gpu_memory_gib": 60}
    )
    job = make_job(spec={"gpu_memory_gib": 40})

    assert look_ahead(job, job.owner).search.changes == [Change("gpu_memory_gib", 20.0)]


def test_nothing_is_promised_when_nothing_helps(make_device, make_job, ada):
    make_device(0, health=Health.FAULTY)

    assert look_ahead(make_job(gpus=1), ada).search.changes == []


def test_a_job_that_does_not_wait_has_nothing_to_change(devices, make_job, ada):
    assert look_ahead(make_job(gpus=4, state=JobState.HELD), ada) == Outlook()


def test_looking_changes_nothing(devices, make_job, make_attempt):
    make_attempt(state=JobState.RUNNING, devices=devices[:2], gpus=2)
    job = make_job(gpus=4)

    look_ahead(job, job.owner)

    job.refresh_from_db()
    assert (job.state, job.gpus, job.attempt_count) == (JobState.QUEUED, 4, 0)


def test_a_search_that_has_no_time_says_so(devices, make_job, make_attempt, monkeypatch):
    monkeypatch.setattr(whatif, "LONGEST_SEARCH_S", 0.0)
    make_attempt(state=JobState.RUNNING, devices=devices[:2], gpus=2)
    job = make_job(gpus=4)

    assert look_ahead(job, job.owner).search == Search([], complete=False)
