"""What other servers say of themselves, and the devices that follow from it."""

import time

import pytest
from django.utils import timezone

from orchestrator.agent.inventory import record_inventory
from orchestrator.devices import DeviceInfo, HostReading, Reading
from orchestrator.devices.types import DeviceProcess
from orchestrator.models import (
    Dataset,
    DatasetRoot,
    Device,
    Environment,
    EnvironmentState,
    Health,
    Job,
    Network,
)
from orchestrator.nodes.places import Places
from orchestrator.nodes.port import Node, Readings
from orchestrator.nodes.reports import SILENT_AFTER_S, read_reports, their_device_id, write_report
from orchestrator.scheduler import core
from orchestrator.scheduler.passes.facts import Elsewhere, Furnished, job_facts
from orchestrator.scheduler.passes.snapshot import look

NODE = Node("gpu2", "boot", 1, "3.11.2", Places("/h", "/b", "/p", (), 8), 2, "")
HOST = HostReading(10.0, 1, 2, 3, 0.5)


def gpu(index: int) -> DeviceInfo:
    return DeviceInfo(id=f"GPU-{index}", index=index, kind="gpu", name="H100", memory_bytes=80 << 30)


def slot(index: int) -> DeviceInfo:
    return DeviceInfo(id=f"cpu-{index}", index=index, kind="cpu", name="CPU", memory_bytes=1 << 30)


def read(*devices: DeviceInfo, taken_at: float = 5.0) -> Readings:
    process = DeviceProcess(pid=7, used_bytes=1, user="ada", command="python", attempt=None)
    readings = [
        Reading(device_id=each.id, taken_at=taken_at, used_bytes=1, total_bytes=2, processes=(process,))
        for each in devices
    ]
    return Readings(list(devices), readings, HOST, "gpu", None)


def test_report_comes_back_as_it_was_written_with_devices_named_for_this_server(tmp_path):
    write_report(tmp_path, NODE, read(gpu(0), slot(0)))

    (report,) = read_reports(tmp_path)

    assert (report.name, report.node["boot"], report.host["load"]) == ("gpu2", "boot", 0.5)
    assert [(each.id, each.node) for each in report.devices] == [("GPU-0", "gpu2"), ("gpu2_cpu-0", "gpu2")]
    assert [each.device_id for each in report.readings] == ["GPU-0", "gpu2_cpu-0"]
    assert report.readings[0].processes[0].user == "ada"
    assert their_device_id("gpu2", "gpu2_cpu-0") == "cpu-0"
    assert not report.is_silent


def test_readings_are_dated_by_our_clock_whatever_the_other_says(tmp_path):
    write_report(tmp_path, NODE, read(gpu(0), taken_at=time.time() - 600))

    (report,) = read_reports(tmp_path)

    assert time.time() - report.readings[0].taken_at < 60


def test_report_that_is_old_is_of_a_silent_server(tmp_path, monkeypatch):
    write_report(tmp_path, NODE, read(gpu(0)))
    (report,) = read_reports(tmp_path)

    later = time.time() + SILENT_AFTER_S + 1
    monkeypatch.setattr(time, "time", lambda: later)

    assert report.is_silent


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": 1}', '{"at": "x", "node": {}}'])
def test_file_that_is_no_report_is_left_out(tmp_path, text):
    (tmp_path / "odd.json").write_text(text)

    assert read_reports(tmp_path) == []


def test_devices_of_a_silent_server_stay_and_take_no_job_until_it_answers(db):
    there = DeviceInfo(id="gpu2_cpu-0", index=0, kind="cpu", name="CPU", memory_bytes=1 << 30, node="gpu2")
    record_inventory([slot(0), there])

    record_inventory([slot(0)], silent=["gpu2"])

    device = Device.objects.get(pk="gpu2_cpu-0")
    assert (device.health, device.health_reason) == (Health.SILENT, "The server gpu2 does not answer.")
    assert (device.usable, device.label) == (False, "gpu2: CPU slot 0")
    record_inventory([slot(0), there])
    assert Device.objects.get(pk="gpu2_cpu-0").health == Health.OK


def test_devices_of_a_server_that_left_are_removed(db):
    there = DeviceInfo(id="gpu2_cpu-0", index=0, kind="cpu", name="CPU", memory_bytes=1 << 30, node="gpu2")
    record_inventory([slot(0), there])

    record_inventory([slot(0)])

    assert not Device.objects.filter(node="gpu2").exists()


@pytest.mark.parametrize(
    ("fields", "anywhere"),
    [
        ({}, True),
        ({"datasets": ["mnist"]}, False),
        ({"python": "torch2"}, False),
        ({"kind": "session"}, False),
    ],
)
def test_job_that_needs_something_of_this_server_stays_here(make_job, fields, anywhere):
    job = make_job()
    job.spec_fields = {**job.spec_fields, **fields}

    assert (job_facts(job, elsewhere=Elsewhere({}))["constraints"].only_nodes == ()) is anywhere
    assert job_facts(job)["constraints"].only_nodes == ()  # without other servers nothing is different


@pytest.mark.parametrize(
    ("fields", "spans"),
    [({}, True), ({"command": ["bash", "run.sh"]}, False), ({"datasets": ["mnist"]}, False)],
    ids=["script", "command", "data of this server"],
)
def test_job_of_several_devices_may_span_servers_if_torchrun_starts_its_ranks(make_job, fields, spans):
    job = make_job(spec={"gpus": 4})
    job.spec_fields = {**job.spec_fields, **fields}

    assert job_facts(job, elsewhere=Elsewhere({}))["constraints"].spans is spans
    assert not job_facts(job)["constraints"].spans
    job.pool.network = Network.NONE
    assert not job_facts(job, elsewhere=Elsewhere({}))["constraints"].spans


def test_job_with_data_runs_where_that_data_is(make_job, ada):
    root = DatasetRoot.objects.create(name="data", path="/srv/data")
    for name, version in (("mnist", "1"), ("mnist", "2"), ("imdb", "1")):
        Dataset.objects.create(name=name, version=version, root=root, path=name, owner=ada)
    elsewhere = Elsewhere({"gpu2": ("imdb", "mnist@1"), "gpu3": ("mnist",), "gpu4": ()})

    def nodes_of(*references: str) -> tuple[str, ...]:
        where = job_facts(make_job(spec={"datasets": list(references)}), elsewhere=elsewhere)["constraints"]
        assert where.for_data is (len(where.only_nodes) > 1)
        return where.only_nodes

    assert nodes_of("mnist@1") == ("local", "gpu2", "gpu3")
    assert nodes_of("mnist") == ("local", "gpu3")  # the newest version
    assert nodes_of("mnist@1", "imdb") == ("local", "gpu2")
    assert nodes_of("mnist", "imdb") == ("local",)
    assert nodes_of("mnist@1", "data=https://host/file.csv") == ("local",)


def test_job_with_packages_runs_where_these_are_ready(make_job, ada):
    now = timezone.now()
    environment = Environment.objects.create(
        request={}, origin="--with", state=EnvironmentState.READY, key="k", created_at=now
    )
    root = DatasetRoot.objects.create(name="data", path="/srv/data")
    Dataset.objects.create(name="mnist", version="1", root=root, path="mnist", owner=ada)
    data = {"gpu2": ("mnist",), "gpu3": ("mnist",)}

    def where(found: Furnished | None = None, **spec: object) -> core.Constraints:
        job = make_job(spec=spec)
        job.environment = environment
        packages = {} if found is None else {environment.pk: found}
        elsewhere = Elsewhere(data, packages, nodes={"default": ["local", "gpu3"]})
        return job_facts(job, elsewhere=elsewhere)["constraints"]

    ready = Furnished(ready=frozenset({"gpu3", "gpu4"}))
    assert where().only_nodes == ("local",)
    assert where(ready).only_nodes == ("local", "gpu3", "gpu4")
    assert where(ready, datasets=["mnist"]).only_nodes == ("local", "gpu3")
    assert where(ready, kind="session").only_nodes == ("local",)
    assert where(Furnished(coming=frozenset({"gpu3"}))).for_packages
    assert not where(Furnished(coming=frozenset({"gpu4"}))).for_packages  # of another pool


@pytest.mark.parametrize(
    ("fields", "coming"),
    [
        ({}, True),
        ({"state": EnvironmentState.BUILDING, "key": ""}, True),
        ({"request": {"interpreter": "/opt/python"}}, False),
        ({"request": {"image": "lab/train"}}, False),
        ({"key": "refused"}, False),
    ],
    ids=["ready here", "being built here", "on a Python of this server", "an image", "refused there"],
)
def test_packages_may_come_to_a_server_that_can_build_them(make_job, make_device, home, fields, coming):
    make_device()
    Device.objects.update(node="gpu2")
    write_report(home.nodes, NODE, read(slot(0)), refused=["refused"])
    given = {"request": {}, "origin": "--with", "state": EnvironmentState.READY, "key": "k", **fields}
    job = make_job()
    Job.objects.filter(pk=job.pk).update(
        environment=Environment.objects.create(created_at=timezone.now(), **given)
    )

    (queued,) = look(timezone.now()).queued

    assert queued.constraints.only_nodes == ("local",)
    assert queued.constraints.for_packages is coming
