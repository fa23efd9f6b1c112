"""When replicas are begun, retired, taken back and stopped."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from orchestrator.facts.record import NOTHING
from orchestrator.models import AdminState, Device, Health, JobState, Service, ServiceReplica
from orchestrator.sentences import say_json
from orchestrator.services import controller, health
from orchestrator.store.layout import Home
from tests.unix_sockets import unix_listener
from tests.waiting import PATIENCE_S


@pytest.fixture
def now() -> datetime:
    return timezone.now()


def advance(service: Service, now: datetime, *times_s: float) -> None:
    for each_s in times_s:
        service.refresh_from_db()
        controller.advance(service, now + timedelta(seconds=each_s))


def state_of(replica: ServiceReplica) -> str:
    replica.job.refresh_from_db()
    return str(replica.job.state)


def test_replica_that_nobody_asks_frees_its_device_soon(make_service, make_replica, now):
    service = make_service(idle_s=60, deadline_s=30, asked_at=now)
    replica = make_replica(service)

    advance(service, now, 59)
    assert controller.open_replicas(service) == [replica]

    advance(service, now, 61, 64)
    assert (controller.open_replicas(service), state_of(replica)) == ([], JobState.STOPPING)


def test_service_of_a_disabled_account_keeps_no_device(make_service, make_replica, now, ada):
    service = make_service(min_replicas=1)
    replica = make_replica(service)
    ada.is_active = False
    ada.save()

    advance(service, now, 0, 31)

    assert state_of(replica) in {JobState.STOPPING, JobState.CANCELLED}
    assert Service.objects.get().state == "on"  # it answers again once the account is enabled


def test_request_takes_back_a_replica_that_was_just_retired(make_service, make_replica, now):
    service = make_service(idle_s=60, asked_at=now - timedelta(seconds=61))
    replica = make_replica(service)
    advance(service, now, 0)
    assert controller.open_replicas(service) == []

    controller.begin_first(service)

    Service.objects.update(asked_at=now)
    advance(service, now, 1, 40)
    assert controller.ready_replicas(service) == [replica]
    assert state_of(replica) == JobState.RUNNING


def test_replica_beyond_what_is_asked_for_may_answer_what_it_has_begun(make_service, make_replica, now):
    service = make_service(deadline_s=20, asked_at=now, wanted=1)
    first, second = make_replica(service), make_replica(service)

    advance(service, now, 0, 19)
    assert controller.open_replicas(service) == [first]
    assert state_of(second) == JobState.RUNNING

    advance(service, now, 21)
    assert (state_of(first), state_of(second)) == (JobState.RUNNING, JobState.STOPPING)


def test_old_replica_answers_until_a_new_one_does(make_service, make_replica, now):
    service = make_service(revision=2, deadline_s=20, asked_at=now, wanted=1)
    old, new = make_replica(service, revision=1), make_replica(service, ready_attempt=0)

    advance(service, now, 0)
    assert controller.ready_replicas(service) == [old]

    ServiceReplica.objects.filter(pk=new.pk).update(ready_attempt=1)
    advance(service, now, 1, 22)
    assert controller.ready_replicas(service) == [new]
    assert state_of(old) == JobState.STOPPING


def test_an_update_keeps_as_many_replicas_at_work_as_are_asked_for(make_service, make_replica, now):
    service = make_service(revision=2, asked_at=now, wanted=3, max_replicas=3)
    old = [make_replica(service, revision=1) for _ in range(3)]
    new = [make_replica(service, ready_attempt=ready) for ready in (1, 0, 0)]

    assert controller.ready_replicas(service) == [new[0], *old[1:]]
    advance(service, now, 0, 1, 2, 3)
    assert controller.ready_replicas(service) == [new[0], *old[1:]]

    ServiceReplica.objects.filter(revision=2).update(ready_attempt=1)
    advance(service, now, 4)
    assert controller.ready_replicas(service) == new


def test_the_replica_that_answers_stays_until_one_of_the_newest_code_does(make_service, make_replica, now):
    service = make_service(revision=3, asked_at=now, wanted=1)
    first = make_replica(service, revision=1)
    hanging, newest = (
        make_replica(service, revision=2, ready_attempt=0),
        make_replica(service, ready_attempt=0),
    )

    advance(service, now, 0, 1)
    assert controller.ready_replicas(service) == [first]
    assert hanging in controller.open_replicas(service)

    ServiceReplica.objects.filter(pk=newest.pk).update(ready_attempt=1, ready_at=now)
    advance(service, now, 2)
    assert controller.open_replicas(service) == [newest]


def test_an_old_replica_leaves_its_device_to_a_new_one_although_more_are_asked_for(
    make_service, make_replica, now
):
    service = make_service(revision=2, asked_at=now, wanted=2, max_replicas=2)
    make_replica(service, revision=1)
    new = [make_replica(service, ready_attempt=ready) for ready in (1, 0)]  # the other one waits for a device

    advance(service, now, 1)

    assert controller.open_replicas(service) == new


def test_a_service_that_cannot_be_kept_leaves_the_others_alone(
    make_service, make_device, store_script, monkeypatch
):
    make_device(0)
    job = {"command": ["python", "train.py"], "kind": "service", "max_retries": 0}
    broken = make_service("broken", job_fields=["not", "an", "object"], min_replicas=1)
    worse = make_service("worse", job_fields=job, min_replicas=1)
    well = make_service("well", job_fields=job, min_replicas=1, bundle=store_script(b"print(1)\n"))
    worse.min_replicas = "one"  # what no check of ours lets into the table
    monkeypatch.setattr(connection, "close", lambda: None)  # the test goes on with it

    controller.advance_all([broken, worse, well])

    broken.refresh_from_db()
    assert broken.state == "failed"
    assert "cannot be read" in broken.why["facts"]["problem"]
    assert ServiceReplica.objects.filter(service=well).exists()


@pytest.mark.parametrize(
    "away", [{"health": Health.MISSING}, {"admin_state": AdminState.DISABLED}], ids=["missing", "disabled"]
)
def test_a_service_waits_for_devices_that_are_away_and_says_so(
    make_service, make_device, store_script, now, away
):
    device = make_device(0)
    job = {"command": ["python", "train.py"], "kind": "service", "max_retries": 0}
    service = make_service(job_fields=job, min_replicas=1, bundle=store_script(b"print(1)\n"))
    before = {field: getattr(device, field) for field in away}
    Device.objects.update(**away)

    advance(service, now, 0, 1)

    service.refresh_from_db()
    assert service.state == "on"
    assert say_json(service.why).startswith("No replica can be submitted: Pool default has no devices")
    assert not ServiceReplica.objects.exists()

    Device.objects.update(**before)
    controller.begin_first(service)
    assert not ServiceReplica.objects.exists()  # requests that wait do not try twenty times a second
    advance(service, now, 2)

    service.refresh_from_db()
    assert (service.state, service.why) == ("on", NOTHING.as_json())
    assert ServiceReplica.objects.count() == 1


def test_a_service_that_nobody_needs_any_longer_does_not_say_what_it_waited_for(
    make_service, make_device, now
):
    make_device(0)
    Device.objects.update(health=Health.MISSING)
    job = {"command": ["python", "train.py"], "kind": "service"}
    service = make_service(job_fields=job, asked_at=now, wanted=1)

    advance(service, now, 0)
    service.refresh_from_db()
    assert "No replica can be submitted" in say_json(service.why)

    advance(service, now, service.idle_s + 1)
    service.refresh_from_db()
    assert service.why == NOTHING.as_json()


def serve_once(
    home: Home, replica: ServiceReplica, answer: Callable[[socket.socket], None]
) -> threading.Thread:
    """The program of a replica, for one connection."""
    listener = unix_listener(home.job(replica.job_id).attempt(1).session_socket)
    listener.setblocking(True)

    def serve() -> None:
        connection, _ = listener.accept()
        with listener, connection, contextlib.suppress(OSError):  # who asks may hang up first
            connection.recv(65536)
            answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.0 503 Loading\r\n\r\n", False),
        (b"nonsense", False),
        (b"", False),
    ],
    ids=["200", "204 after hints", "503", "nonsense", "nothing"],
)
def test_health_path_says_whether_a_replica_is_ready(
    home, make_service, make_replica, now, answer, ready, monkeypatch
):
    monkeypatch.setattr(health, "ANSWERS_WITHIN_S", PATIENCE_S)
    service = make_service(health_path="/ready")
    replica = make_replica(service, ready_attempt=0)
    program = serve_once(home, replica, lambda connection: connection.sendall(answer))

    assert controller.look_at_replicas([service], now) is ready

    program.join(PATIENCE_S)
    assert (controller.ready_replicas(service) == [replica]) is ready


def test_replica_that_drips_its_answer_is_given_up_in_time(
    home, make_service, make_replica, now, monkeypatch
):
    monkeypatch.setattr(health, "ANSWERS_WITHIN_S", 0.2)
    service = make_service(health_path="/ready")
    replica = make_replica(service, ready_attempt=0)
    sent = []

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(1000):
            connection.sendall(b"x")
            sent.append(1)
            time.sleep(0.05)
        connection.sendall(b"\r\n\r\n")

    program = serve_once(home, replica, drip)

    assert not controller.look_at_replicas([service], now)

    program.join(PATIENCE_S)
    assert len(sent) < 1000


@pytest.mark.django_db(transaction=True)
def test_replicas_of_all_services_are_asked_at_once(
    make_service, make_replica, make_program, now, monkeypatch
):
    monkeypatch.setattr(health, "ANSWERS_WITHIN_S", PATIENCE_S)
    together = threading.Barrier(3)

    def answer(connection: socket.socket, head: bytes) -> None:
        together.wait(60)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    services = [make_service(f"s{number}", health_path="/ready", asked_at=now) for number in range(3)]
    replicas = [make_replica(service, ready_attempt=0) for service in services]
    for replica in replicas:
        make_program(replica, answer)

    controller.advance_all(services)

    assert [controller.ready_replicas(service) for service in services] == [[each] for each in replicas]
