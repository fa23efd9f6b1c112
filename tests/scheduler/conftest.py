"""States of the queue that tests of several modules begin with."""

import pytest

from orchestrator.models import JobState
from orchestrator.scheduler import passes
from tests.scheduler.test_placement import read, reading

HOUR_S = 3600


@pytest.fixture
def wide_job_waits(make_job, make_attempt, make_device, ada, bob):
    """Of two devices one runs a job of bob's for four hours, and a job of ada's waits for both."""
    busy = make_job(bob, time_limit_s=4 * HOUR_S)
    make_attempt(busy, state=JobState.RUNNING, devices=[make_device(0)])
    make_device(1)
    read(reading("sim-0"), reading("sim-1"))
    wide = make_job(ada, gpus=2, name="big-7b", time_limit_s=HOUR_S)
    passes.run_pass()
    return wide
