"""Energy of devices, added to the leases of the jobs on them."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.agent.watches.energy import EnergyWatch
from orchestrator.devices.types import Reading
from orchestrator.models import JobState, Lease
from orchestrator.people.usage import read_usage
from orchestrator.spec.job_spec import GIB


def reading(at_s: float, **values: Any) -> Reading:
    return Reading(device_id="sim-0", taken_at=at_s, used_bytes=0, total_bytes=80 * GIB, **values)


def watch(*readings: Reading) -> float | None:
    """The energy of the only lease after these readings and its end."""
    energy = EnergyWatch()
    for one in readings:
        energy.note([one], list(Lease.objects.active()))
    Lease.objects.update(ended_at=timezone.now())
    energy.note([], [])
    return Lease.objects.values_list("energy_j", flat=True).first()


def test_counter_of_the_device_counts_for_the_job_that_held_it(make_attempt):
    make_attempt(state=JobState.RUNNING)

    assert (
        watch(reading(0, energy_j=1000.0), reading(1, energy_j=1300.0), reading(2, energy_j=1500.0)) == 500.0
    )


def test_device_without_a_counter_counts_by_its_power(make_attempt):
    make_attempt(state=JobState.RUNNING)

    assert watch(reading(0, power_w=100.0), reading(2, power_w=300.0)) == 400.0


@pytest.mark.parametrize(
    "second",
    [
        reading(1),
        reading(3600, energy_j=9e9),
        reading(-5, energy_j=2000.0),
        reading(1, energy_j=2e3, stale=True),
    ],
    ids=["says nothing", "after a long gap", "the clock went back", "no answer in time"],
)
def test_energy_that_nobody_knows_is_nobodys(make_attempt, second):
    make_attempt(state=JobState.RUNNING)

    assert watch(reading(0, energy_j=1000.0), second) is None


def test_driver_that_was_loaded_again_does_not_count_backwards(make_attempt):
    make_attempt(state=JobState.RUNNING)

    assert watch(reading(0, energy_j=9e6), reading(1, energy_j=10.0), reading(2, energy_j=60.0)) == 50.0


def test_jobs_on_one_device_get_equal_parts(make_attempt, make_device):
    device = make_device(0)
    for _ in range(2):
        make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=GIB)

    watch(reading(0, energy_j=0.0), reading(1, energy_j=600.0))

    assert list(Lease.objects.values_list("energy_j", flat=True)) == [300.0, 300.0]


def test_usage_sums_the_energy_of_each_owner(make_attempt, ada):
    attempt = make_attempt(state=JobState.RUNNING)
    now = timezone.now()
    Lease.objects.filter(attempt=attempt).update(
        started_at=now - timedelta(hours=2), ended_at=now, energy_j=7.2e6
    )

    (row,) = read_usage("owner", now - timedelta(hours=1), now, now=now).rows

    assert row.key == "ada"
    assert row.energy_j == pytest.approx(3.6e6)
