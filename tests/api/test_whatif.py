"""What would start a waiting job now."""

import pytest

from orchestrator.models import Health, JobState
from orchestrator.whatif import Change, changes_that_start


@pytest.fixture
def devices(make_device):
    return [make_device(index) for index in range(4)]


def test_the_largest_number_of_devices_that_is_free_is_offered(devices, make_job, make_attempt):
    make_attempt(state=JobState.RUNNING, devices=devices[:2], gpus=2)
    job = make_job(gpus=4)

    assert changes_that_start(job, job.owner) == [Change("gpus", 2)]


def test_less_memory_is_offered_where_a_device_is_shared(make_device, make_job, make_attempt):
    make_attempt(
        state=JobState.RUNNING, devices=[make_device(0)], memory_bytes=60 * 2**30, spec={"gpu_memory_gib": 60}
    )
    job = make_job(spec={"gpu_memory_gib": 40})

    assert changes_that_start(job, job.owner) == [Change("gpu_memory_gib", 20.0)]


def test_nothing_is_promised_when_nothing_helps(make_device, make_job, ada):
    make_device(0, health=Health.FAULTY)

    assert changes_that_start(make_job(gpus=1), ada) == []


def test_a_job_that_does_not_wait_has_nothing_to_change(devices, make_job, ada):
    assert changes_that_start(make_job(gpus=4, state=JobState.HELD), ada) == []


def test_looking_changes_nothing(devices, make_job, make_attempt):
    make_attempt(state=JobState.RUNNING, devices=devices[:2], gpus=2)
    job = make_job(gpus=4)

    changes_that_start(job, job.owner)

    job.refresh_from_db()
    assert (job.state, job.gpus, job.attempt_count) == (JobState.QUEUED, 4, 0)
