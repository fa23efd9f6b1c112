"""F77 and F78: errors by number, sorted by what is to be done about them."""

import time

import pytest
from django.utils import translation

from deploy.translations import catalog
from orchestrator.agent.watches.devices import act_on_xids
from orchestrator.devices.types import Reading
from orchestrator.devices.xids import _KNOWN, explain
from orchestrator.facts.events import Happened
from orchestrator.models import Device, Health, JobState, Lease, StopReason
from orchestrator.spec.job_spec import GIB
from tests.system.server import REPOSITORY

GERMAN = catalog(REPOSITORY / "orchestrator/locale/de")


def report(*numbers: int) -> None:
    reading = Reading(
        device_id="sim-0", taken_at=time.time(), used_bytes=GIB, total_bytes=80 * GIB, xids=numbers
    )
    act_on_xids([reading], list(Lease.objects.active().select_related("attempt__job", "device")))


@pytest.fixture
def attempt(make_attempt, make_device):
    return make_attempt(state=JobState.RUNNING, devices=[make_device(0)])


@pytest.mark.code("F77")
@pytest.mark.parametrize("number", [46, 48, 61, 62, 64, 74, 79, 95, 109, 119, 120, 140])
def test_grave_error_takes_the_gpu_out_and_its_job_restarts_elsewhere(number, attempt):
    report(number)

    device = Device.objects.get()
    attempt.job.refresh_from_db()
    assert device.health == Health.FAULTY
    assert f"Xid {number}" in device.health_reason
    assert (attempt.job.state, attempt.job.stop_reason) == (JobState.STOPPING, StopReason.GPU_FAULT)


def test_why_a_device_is_out_of_use_is_a_fact_that_each_reader_reads_in_their_language(attempt):
    report(79)

    device = Device.objects.get()
    hint = attempt.job.events.of(Happened.DEVICE_ERROR).get()
    assert (device.health_why["code"], device.health_why["facts"]["xid"]) == ("device_xid", 79)
    assert device.health_reason == explain(79).sentence
    with translation.override("de"):
        assert device.health_reason.startswith("Xid 79: die GPU ist vom Bus verschwunden. Sie ist außer")
        assert hint.reason == f"simulierte GPU 0 meldete {device.health_reason}"


def test_every_error_of_the_table_has_its_german():
    for number in [*_KNOWN, 9999]:
        for words in (explain(number).what, explain(number).advice):
            assert GERMAN.get(words), words


@pytest.mark.code("F77")
def test_contained_error_only_restarts_the_job(attempt):
    report(94)

    attempt.job.refresh_from_db()
    assert Device.objects.get().health == Health.OK
    assert attempt.job.stop_reason == StopReason.GPU_FAULT


@pytest.mark.code("F78")
@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_error_of_the_program_is_a_hint_and_the_gpu_stays(number, attempt):
    report(number)

    attempt.job.refresh_from_db()
    assert Device.objects.get().health == Health.OK
    assert attempt.job.state == JobState.RUNNING
    hint = attempt.job.events.get(actor="health").reason
    assert f"simulated GPU 0 reported Xid {number}" in hint
    assert "the GPU stays in use" in hint


@pytest.mark.code("F77")
@pytest.mark.parametrize("number", [63, 92, 9999])
def test_harmless_error_is_recorded_and_stops_nothing(number, attempt):
    report(number)

    attempt.job.refresh_from_db()
    assert (attempt.job.state, Device.objects.get().health) == (JobState.RUNNING, Health.OK)
    assert f"Xid {number}" in attempt.job.events.get(actor="health").reason


@pytest.mark.code("F78")
def test_repeated_error_in_a_reading_is_reported_once(attempt):
    report(31, 31, 31)

    assert attempt.job.events.filter(actor="health").count() == 1


def test_an_error_of_an_idle_gpu_takes_it_out_as_well(make_device):
    make_device(0)

    report(79)

    assert Device.objects.get().health == Health.FAULTY
