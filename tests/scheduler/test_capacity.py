"""What somebody could start now: one count behind headline, tiles, REST and the command line."""

from datetime import timedelta

import pytest
from django.utils import timezone, translation

from orchestrator.live.readings import read_now
from orchestrator.models import Device, JobState, Pool, Quota
from orchestrator.scheduler import passes
from orchestrator.scheduler.availability import Availability
from orchestrator.scheduler.capacity import read_capacity
from orchestrator.scheduler.forecast.steps import read_steps
from orchestrator.spec.job_spec import GIB
from tests.scheduler.test_placement import read, reading

HOUR_S = 3600


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


def capacity_of(user, **read_as):
    devices = sorted(Device.objects.select_related("pool"), key=lambda device: device.place)
    read(*(reading(device.pk, **read_as.get(device.pk.replace("-", "_"), {})) for device in devices))
    return read_capacity(user, devices, read_now(), timezone.now())


def test_a_limit_of_two_devices_leaves_two_of_four_free_ones(make_device, ada):
    for index in range(4):
        make_device(index)
    Quota.objects.create(user=ada, max_devices=2)

    capacity = capacity_of(ada)

    assert (capacity.free, capacity.beyond_limits, capacity.limit) == (2, 2, "2 devices")
    assert capacity.sentence == "2 of 4 GPUs free, 2 more than your limit of 2 devices allows"


def test_a_free_device_is_not_called_free_to_somebody_whose_limit_is_used_up(
    make_device, make_attempt, make_job, ada, bob
):
    make_attempt(make_job(ada), state=JobState.RUNNING, devices=[make_device(0)])
    make_device(1)
    Quota.objects.create(user=ada, max_devices=1)

    hers, his = capacity_of(ada), capacity_of(bob)

    assert hers.device("sim-1").standing.state == Availability.LIMITED
    assert hers.device("sim-1").standing.sentence == "Free, but your limit of 1 device is used up."
    assert hers.sentence == "0 of 2 GPUs free, 1 more than your limit of 1 device allows"
    assert his.sentence == "1 of 2 GPUs free"


def test_a_limit_in_one_pool_leaves_the_devices_of_others(make_device, make_pool, ada):
    make_device(0)
    make_device(1)
    make_device(2, pool=make_pool("lab"))
    Quota.objects.create(user=ada, pool=Pool.objects.get(pk="default"), max_devices=1)

    capacity = capacity_of(ada)

    assert capacity.free == 2
    assert capacity.limit == "1 device in pool default"


def test_what_is_free_is_said_in_german_with_its_limit(make_device, ada):
    make_device(1)
    Device.objects.create(
        id="cpu-0", index=0, name="CPU", kind="cpu", memory_bytes=GIB, pool_id=make_device(0).pool_id
    )
    only_slots = Device.objects.filter(kind="cpu")
    Quota.objects.create(user=ada, pool=Pool.objects.get(pk="default"), max_devices=1)

    with translation.override("de"):
        mixed = capacity_of(ada).sentence
        slots = read_capacity(ada, only_slots.select_related("pool"), read_now(), timezone.now()).sentence

    assert mixed == "2 von 3 Geräten frei, 1 mehr, als das eigene Limit erlaubt (1 Gerät in Pool default)"
    assert slots == "1 von 1 CPU-Plätzen frei"


def test_hours_of_a_week_are_a_limit_in_german(make_device, make_job, make_attempt, ada):
    attempt = make_attempt(make_job(ada), state=JobState.RUNNING, devices=[make_device(0)])
    attempt.leases.update(started_at=timezone.now() - timedelta(hours=3))
    make_device(1)
    Quota.objects.create(user=ada, gpu_hours_a_week=2)

    with translation.override("de"):
        said = capacity_of(ada).sentence

    assert said == ("0 von 2 GPUs frei, 1 mehr, als das eigene Limit erlaubt (2 GPU-Stunden in sieben Tagen)")


def test_hours_of_the_week_that_are_used_up_leave_nothing(make_device, make_job, make_attempt, ada):
    attempt = make_attempt(make_job(ada), state=JobState.RUNNING, devices=[make_device(0)])
    attempt.leases.update(started_at=timezone.now() - timedelta(hours=3))
    make_device(1)
    Quota.objects.create(user=ada, gpu_hours_a_week=2)

    assert capacity_of(ada).device("sim-1").standing.state == Availability.LIMITED


def test_slots_of_the_processor_count_for_no_limit_over_all_pools(make_device, ada):
    Device.objects.create(
        id="cpu-0", index=0, name="CPU", kind="cpu", memory_bytes=GIB, pool_id=make_device(0).pool_id
    )
    Quota.objects.create(user=ada, max_devices=1)

    capacity = capacity_of(ada)

    assert capacity.free == 2
    assert capacity.beyond_limits == 0


def test_what_can_be_claimed_on_a_shared_device_is_what_claims_and_strangers_leave(
    make_device, make_job, make_attempt, ada, bob
):
    shared, whole = make_device(0), make_device(1)
    claims = make_attempt(
        make_job(ada, spec_fields={"gpu_memory_gib": 30.0}), state=JobState.RUNNING, devices=[shared]
    )
    claims.leases.update(memory_bytes=30 * GIB)
    make_attempt(make_job(bob), state=JobState.RUNNING, devices=[whole])
    total = shared.memory_bytes

    capacity = capacity_of(bob, sim_0={"foreign_gib": 2.0})

    assert capacity.device("sim-0").claimable_bytes == total - 32 * GIB
    assert capacity.device("sim-0").claimed_bytes == {str(claims.job_id): 30 * GIB}
    assert capacity.device("sim-1").claimable_bytes == 0
    assert f"{(total - 32 * GIB) / GIB:.1f} GiB can be claimed on a shared one" in capacity.sentence


@pytest.mark.parametrize(("more_gib", "state"), [(0, JobState.STARTING), (1, JobState.QUEUED)])
def test_what_can_be_claimed_is_what_a_pass_gives(
    make_device, make_job, make_attempt, ada, bob, more_gib, state
):
    shared = make_device(0)
    make_attempt(
        make_job(ada, spec_fields={"gpu_memory_gib": 30.0}), state=JobState.RUNNING, devices=[shared]
    ).leases.update(memory_bytes=30 * GIB)
    most_gib = capacity_of(bob).device("sim-0").claimable_bytes / GIB
    job = make_job(bob, spec_fields={"gpu_memory_gib": most_gib + more_gib})

    passes.run_pass()

    job.refresh_from_db()
    assert job.state == state


def test_the_count_of_kept_devices_says_which_jobs_they_take(wide_job_waits, bob):
    assert "0 of 2 GPUs free, 1 kept (free for jobs under 3 h 5" in capacity_of(bob).sentence


def test_a_short_job_starts_now_where_a_long_one_waits(wide_job_waits, bob):
    (pool,) = read_steps(bob, Pool.objects.all(), timezone.now())

    assert [step.starts_now for step in pool.steps] == [True, True, True, False, False]
    assert not pool.all_start
    assert all(step.start_earliest is None for step in pool.steps if step.starts_now)


def test_a_step_that_starts_now_is_what_a_submit_of_that_length_meets(wide_job_waits, bob, make_job):
    (pool,) = read_steps(bob, Pool.objects.all(), timezone.now())
    longest = max(step.time_limit_s for step in pool.steps if step.starts_now)
    job = make_job(bob, time_limit_s=longest)

    passes.run_pass()

    job.refresh_from_db()
    assert job.state == JobState.STARTING


def test_without_any_job_one_of_any_length_starts(make_device, ada):
    make_device(0)
    read(reading("sim-0"))

    (pool,) = read_steps(ada, Pool.objects.all(), timezone.now())

    assert pool.all_start


def test_somebody_at_their_limit_starts_nothing(make_device, make_job, make_attempt, ada):
    make_attempt(make_job(ada), state=JobState.RUNNING, devices=[make_device(0)])
    make_device(1)
    read(reading("sim-0"), reading("sim-1"))
    Quota.objects.create(user=ada, max_devices=1)

    (pool,) = read_steps(ada, Pool.objects.all(), timezone.now())

    assert not any(step.starts_now for step in pool.steps)
