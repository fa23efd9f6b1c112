"""The newest readings, the table of devices, and what both do when a driver fails."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import IntegrityError
from django.utils import timezone, translation

from orchestrator.agent.inventory import LostDevices, MissingDevices, record_inventory
from orchestrator.agent.readings import ReadingsThread
from orchestrator.devices.slots import SlotDevices
from orchestrator.devices.types import (
    DeviceInfo,
    DeviceProcess,
    DriverUnavailable,
    Gone,
    Holder,
    Kind,
    Reading,
)
from orchestrator.live import readings
from orchestrator.models import Device, Health, Job, JobState, Pool
from orchestrator.spec.job_spec import GIB

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("home")]


class FakeGpus:
    """Two GPUs behind a driver that does what a test says: hardware that we lack."""

    kind: Kind = "gpu"
    dropped = 0

    def __init__(self) -> None:
        self.problem: str | None = None
        self.down = False
        self.processes: tuple[DeviceProcess, ...] = ()
        self.lost: set[str] = set()

    def inventory(self) -> list[DeviceInfo]:
        self._answer()
        return [info(f"GPU-{index}", index) for index in range(2)]

    def read(self, holders: Sequence[Holder]) -> list[Reading]:
        self._answer()
        return [
            Reading(
                device_id=f"GPU-{index}",
                taken_at=time.time(),
                used_bytes=sum(each.used_bytes for each in self.processes) if index == 0 else 0,
                total_bytes=80 * GIB,
                utilization_percent=12.0,
                processes=self.processes if index == 0 else (),
                gone=Gone.FELL_OFF if f"GPU-{index}" in self.lost else None,
            )
            for index in range(2)
        ]

    def close(self) -> None:
        """Nothing is open."""

    def _answer(self) -> None:
        if self.down:
            raise DriverUnavailable("The NVIDIA driver does not answer.")


def info(device_id: str, index: int, kind: Kind = "gpu") -> DeviceInfo:
    return DeviceInfo(id=device_id, index=index, kind=kind, name="H", memory_bytes=80 * GIB)


def tick(devices: Any, thread: ReadingsThread | None = None) -> readings.NowReadings:
    (thread or ReadingsThread(devices, threading.Event())).tick()
    return readings.read_now()


def test_before_the_first_reading_there_is_a_sentence():
    assert readings.read_now().problem == "No readings yet."


def test_every_device_has_its_entry_and_simulated_ones_say_so():
    now = tick(SlotDevices("sim", 2, 80 * GIB))

    assert now.simulated
    assert [device["label"] for device in now.devices] == ["simulated GPU 0", "simulated GPU 1"]
    assert now.devices[0]["total_bytes"] == 80 * GIB
    assert Device.objects.filter(pool="default").count() == 2


def test_numbers_rise_over_restarts_of_the_agent():
    gpus = FakeGpus()
    first, second = tick(gpus), tick(gpus)

    assert second.seq == first.seq + 1
    assert second.stream != first.stream


def test_a_device_shows_who_holds_it(make_attempt):
    gpus = FakeGpus()
    tick(gpus)
    attempt = make_attempt(devices=[Device.objects.get(pk="GPU-0")])

    now = tick(gpus)

    device = now.device("GPU-0")
    assert device is not None
    assert [(each["job"], each["owner"], each["rank"]) for each in device["holders"]] == [
        (str(attempt.job_id), "ada", 0)
    ]


@pytest.mark.code("F83")
def test_external_process_is_shown_with_pid_and_user():
    gpus = FakeGpus()
    gpus.processes = (
        DeviceProcess(42, 20 * GIB, "eve", "python other.py", None, 7260.4),
        DeviceProcess(43, 5 * GIB, "ada", "python train.py", "some-job:1"),
    )

    device = tick(gpus).device("GPU-0")

    assert device is not None
    assert device["foreign_bytes"] == 20 * GIB
    assert device["processes"][0] == {
        "pid": 42,
        "used_bytes": 20 * GIB,
        "user": "eve",
        "command": "python",
        "job": None,
        "attempt": None,
        "age_s": 7260,
    }
    assert device["processes"][1]["job"] == "some-job"


@pytest.mark.code("F79")
def test_unresponsive_driver_is_reported_until_it_answers_again():
    gpus = FakeGpus()
    thread = ReadingsThread(gpus, threading.Event())
    tick(gpus, thread)
    gpus.down = True

    now = tick(gpus, thread)
    assert (now.problem, now.devices) == ("The NVIDIA driver does not answer.", [])
    assert set(Device.objects.values_list("health", flat=True)) == {Health.OK}, (
        "nobody knows that they are gone"
    )

    gpus.down = False
    now = tick(gpus, thread)
    assert (now.problem, len(now.devices)) == (None, 2)


@pytest.mark.code("F76")
def test_lost_device_is_faulty_and_its_job_restarts_elsewhere(make_attempt):
    gpus = FakeGpus()
    thread = ReadingsThread(gpus, threading.Event())
    tick(gpus, thread)
    attempt = make_attempt(devices=[Device.objects.get(pk="GPU-0")], state=JobState.RUNNING)
    gpus.lost = {"GPU-0"}

    tick(gpus, thread)

    device = Device.objects.get(pk="GPU-0")
    why = "The driver has lost it: it fell off the bus. Reset it, or reboot the server."
    assert (device.health, device.health_reason) == (Health.FAULTY, why)
    job = Job.objects.get(pk=attempt.job_id)
    assert (job.state, job.stop_reason) == (JobState.STOPPING, "gpu_fault")
    assert job.reason == f"GPU 0 is faulty: {why}"
    with translation.override("de"):
        assert job.reason.startswith(
            "GPU 0 ist defekt: Der Treiber hat es verloren: Es ist vom Bus gefallen."
        )


def test_a_device_that_answers_again_is_offered_again():
    record_inventory([info("GPU-0", 0)])
    lost = LostDevices()
    reading = Reading(device_id="GPU-0", taken_at=0, used_bytes=0, total_bytes=1, gone=Gone.NEEDS_RESET)
    lost.note([reading])
    assert Device.objects.get().health_reason == "It needs a reset before it can be used again."

    lost.note([Reading(device_id="GPU-0", taken_at=0, used_bytes=0, total_bytes=1)])

    assert Device.objects.get().health == Health.OK


@pytest.mark.code("F82")
def test_missing_gpu_keeps_its_row_and_comes_back():
    record_inventory([info("GPU-0", 0), info("GPU-1", 1)])

    record_inventory([info("GPU-1", 0)])
    gone = Device.objects.get(pk="GPU-0")
    assert (gone.health, gone.health_reason) == (Health.MISSING, "It is not there any more.")

    record_inventory([info("GPU-0", 0), info("GPU-1", 1)])
    assert set(Device.objects.values_list("health", flat=True)) == {Health.OK}


def test_an_operators_pool_and_state_outlive_the_next_inventory():
    record_inventory([info("GPU-0", 0)])
    Device.objects.update(pool=Pool.objects.create(name="big"), admin_state="draining")

    record_inventory([info("GPU-0", 3)])

    device = Device.objects.get()
    assert (device.pool_id, device.admin_state, device.index) == ("big", "draining", 3)


def test_simulated_devices_that_were_never_used_leave_no_trace_but_used_ones_do(make_attempt):
    record_inventory([info("sim-0", 0, "sim"), info("sim-1", 1, "sim")])
    make_attempt(devices=[Device.objects.get(pk="sim-0")])

    record_inventory([])

    assert list(Device.objects.values_list("id", "health")) == [("sim-0", "missing")]


def test_cpu_slots_beside_gpus_have_a_pool_of_their_own_and_slots_alone_have_not():
    record_inventory([info("GPU-0", 0), info("cpu-0", 0, "cpu")])
    assert dict(Device.objects.values_list("id", "pool")) == {"GPU-0": "default", "cpu-0": "cpu"}

    Device.objects.all().delete()
    record_inventory([info("cpu-0", 0, "cpu"), info("cpu-1", 1, "cpu")])
    assert set(Device.objects.values_list("pool", flat=True)) == {"default"}


def test_one_odd_reading_changes_no_inventory():
    devices = MissingDevices({"a", "b"})
    assert not devices.changed({"a"})
    assert not devices.changed({"a", "b"})
    assert devices.changed_at is None


def test_the_thread_outlives_whatever_a_driver_does(caplog):
    class Broken(FakeGpus):
        def read(self, holders: Sequence[Holder]) -> list[Reading]:
            stopping.set()
            raise ZeroDivisionError

    stopping = threading.Event()

    ReadingsThread(Broken(), stopping).run()  # here, not as a thread: it must return

    assert "Reading the devices failed" in caplog.text


def test_half_written_readings_are_ignored(home):
    home.readings.mkdir()
    (home.readings / "now.json").write_text('{"seq": 1')

    assert readings.read_now() == readings.NOTHING_READ


def test_a_device_is_held_whole_by_one_attempt_only(make_attempt, make_device):
    device = make_device()
    make_attempt(devices=[device])
    with pytest.raises(IntegrityError):
        make_attempt(devices=[device])


@pytest.mark.code("F27")
def test_pass_is_requested_when_a_reading_no_longer_shows_an_ended_attempt(
    make_attempt, sent_tasks, django_capture_on_commit_callbacks
):
    gpus = FakeGpus()
    thread = ReadingsThread(gpus, threading.Event())
    tick(gpus, thread)
    attempt = make_attempt(devices=[Device.objects.get(pk="GPU-0")], state=JobState.RUNNING)
    gpus.processes = (DeviceProcess(7, 30 * GIB, "ada", "python", f"{attempt.job_id}:1"),)
    now = tick(gpus, thread)
    process = now.devices[0]["processes"][0]

    with django_capture_on_commit_callbacks(execute=True):
        attempt.leases.update(ended_at=timezone.now())
        gpus.processes = (
            DeviceProcess(7, 30 * GIB, "ada", "python", None),
        )  # its lease is over, it is not gone
        sent_tasks.clear()
        tick(gpus, thread)
    before = list(sent_tasks)
    with django_capture_on_commit_callbacks(execute=True):
        gpus.processes = ()
        tick(gpus, thread)

    assert (process["job"], process["attempt"]) == (str(attempt.job_id), 1)
    assert before == []
    assert sent_tasks == ["orchestrator.agent.tasks.schedule"]


@pytest.fixture
def sent_tasks(monkeypatch) -> list[str]:
    """The names of the tasks that would have gone to the broker."""
    sent: list[str] = []
    monkeypatch.setattr(
        "orchestrator.live.wakeups._send_task", lambda name, *arguments, **named: sent.append(name)
    )
    return sent
