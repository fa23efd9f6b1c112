"""What goes through the door of services to a replica's program and back."""

import socket
import threading

import httpx
import pytest
from django.db import connection

from orchestrator.models import Service, ServiceKey, ServiceReplica
from orchestrator.services import controller, health
from tests.unix_sockets import Program, connected, unix_listener
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_request_reaches_the_program_and_its_answer_the_caller(
    make_service, make_replica, make_program, caller_of
):
    service = make_service(deadline_s=PATIENCE_S)
    program = make_program(make_replica(service), OK)

    assert caller_of(service).get("predict?x=1").text == "ok"

    assert program.heads[0].startswith(b"GET /predict?x=1 HTTP/1.1\r\n")


def test_program_that_does_not_say_whether_it_is_ready_holds_up_no_other_service(
    make_service, make_replica, make_program, caller_of, monkeypatch
):
    monkeypatch.setattr(health, "ANSWERS_WITHIN_S", PATIENCE_S)
    asked, over = threading.Event(), threading.Event()

    def stay_silent(connection: socket.socket, head: bytes) -> None:
        asked.set()
        over.wait(PATIENCE_S)
        connection.sendall(OK)

    silent, other = (
        make_service("silent", health_path="/ready", deadline_s=PATIENCE_S),
        make_service("other", deadline_s=PATIENCE_S),
    )
    make_program(make_replica(silent, ready_attempt=0), stay_silent)
    make_program(make_replica(other), OK)
    waiting = caller_of(silent)
    first = threading.Thread(target=lambda: waiting.get(""))
    first.start()
    wait_until(asked.is_set)

    try:
        assert caller_of(other).get("", timeout=PATIENCE_S / 2).text == "ok"
    finally:
        over.set()
        first.join(PATIENCE_S)


def test_caller_who_gave_up_waits_no_longer_in_the_line(make_service, make_attempt, make_replica, caller_of):
    service = make_service(most_waiting=1, deadline_s=PATIENCE_S)
    starting = make_attempt()
    ServiceReplica.objects.create(service=service, job=starting.job, revision=service.revision)
    caller = caller_of(service)
    with pytest.raises(httpx.ReadTimeout):
        caller.post("", json=[1], timeout=httpx.Timeout(PATIENCE_S, read=0.5))

    codes = []
    for _ in range(100):
        codes.append(caller.post("", json=[2], headers={"Berth-Deadline-Ms": "200"}).json()["code"])
        if codes[-1] == "late":
            break

    assert codes[-1] == "late"


def test_body_that_came_before_its_turn_arrives_whole(make_service, make_replica, make_program, caller_of):
    service = make_service(deadline_s=PATIENCE_S)
    replica = make_replica(service, ready_attempt=0)
    caller, sizes = caller_of(service), []

    def count(connection: socket.socket, head: bytes) -> None:
        begin, _, body = head.partition(b"\r\n\r\n")
        left = int(begin.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) - len(body)
        while left > 0:
            left -= len(connection.recv(65536))
        sizes.append(left)
        connection.sendall(OK)

    def ask() -> None:
        answers.append(caller.post("", content=b"x" * 5_000_000).text)

    answers: list[str] = []
    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: Service.objects.filter(wanted=1).exists())
    make_program(replica, count)
    thread.join(PATIENCE_S)

    assert (answers, sizes) == (["ok"], [0])


def test_callers_who_left_do_not_say_how_long_an_answer_takes(
    make_service, make_replica, make_program, caller_of
):
    service = make_service(deadline_s=PATIENCE_S, parallel=5)
    gone: list[bytes] = []

    def answer(connection: socket.socket, head: bytes) -> None:
        if b"/slow" in head:
            gone.append(connection.recv(1))  # the door hangs up
        connection.sendall(OK)

    make_program(make_replica(service), answer)
    caller = caller_of(service)

    def leave() -> None:
        with pytest.raises(httpx.ReadTimeout):
            caller.get("slow", timeout=httpx.Timeout(PATIENCE_S, read=6))

    leaving = [threading.Thread(target=leave) for _ in range(5)]
    for each in leaving:
        each.start()
    for each in leaving:
        each.join(PATIENCE_S)
    wait_until(lambda: len(gone) == 5)

    said = caller.get("", headers={"Berth-Deadline-Ms": "5900"})

    assert said.text == "ok"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("/predict", "/serve/digits/predict"),
        ("http://service/predict?x=1", "/serve/digits/predict?x=1"),
        ("http://service/serve/digits/predict", "/serve/digits/predict"),  # of one that was told its address
        ("next", "next"),
        ("//other.example/x", "//other.example/x"),
        ("https://other.example/x", "https://other.example/x"),
        ("http://service.example/x", "http://service.example/x"),
        (
            "http://gpu-box/login",
            "/serve/digits/login",
        ),  # of one that knows its callers' host, but not its prefix
        ("http://gpu-box/serve/digits/login", "http://gpu-box/serve/digits/login"),
        ("http://gpu-box/serve/words/login", "http://gpu-box/serve/words/login"),
    ],
)
def test_redirect_of_a_program_leads_back_to_the_service(
    make_service, make_replica, make_program, caller_of, given, told
):
    service = make_service(deadline_s=PATIENCE_S)
    head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {given}\r\nContent-Length: 0\r\n\r\n"
    make_program(make_replica(service), head.encode())

    answer = caller_of(service).get("predict/", headers={"Host": "gpu-box"})

    assert answer.headers["location"] == told


def test_program_is_told_where_its_callers_reach_it(
    make_service, make_replica, make_program, caller_of, door
):
    service = make_service(deadline_s=PATIENCE_S)
    program = make_program(make_replica(service), b"HTTP/1.1 204 No Content\r\n\r\n")

    caller_of(service).get("", headers={"X-Forwarded-Host": "evil.example", "X-Forwarded-Prefix": "/x"})

    told = [
        line for line in program.heads[0].decode().splitlines() if line.lower().startswith("x-forwarded-")
    ]
    assert sorted(told) == [
        f"x-forwarded-host: {door.removeprefix('http://')}",
        "x-forwarded-prefix: /serve/digits",
        "x-forwarded-proto: http",
    ]


def test_replica_whose_queue_is_full_is_waited_for(make_service, make_replica, caller_of, home):
    service = make_service(deadline_s=PATIENCE_S)
    path = home.job(make_replica(service).job_id).attempt(1).session_socket
    listener = unix_listener(path)
    listener.listen(0)
    before = connected(path)
    caller, answers = caller_of(service), []
    thread = threading.Thread(target=lambda: answers.append(caller.get("").text))
    thread.start()
    thread.join(1)
    assert thread.is_alive(), answers

    before.close()
    program = Program(listener, OK)
    thread.join(PATIENCE_S)

    assert answers == ["ok"]
    program.close()


def test_replica_that_listens_no_longer_is_not_ready(make_service, make_replica, make_program, caller_of):
    service = make_service(deadline_s=PATIENCE_S)
    replica = make_replica(service)
    caller = caller_of(service)

    assert caller.get("").json()["code"] == "gone"

    assert controller.ready_replicas(service) == []
    make_program(replica, OK)
    assert caller.get("", headers={"Berth-Deadline-Ms": "60000"}).text == "ok"
    assert controller.ready_replicas(service) == [replica]


def test_answer_that_is_not_over_by_its_deadline_is_incomplete_and_leaves_no_trace(
    make_service, make_replica, make_program, caller_of, caplog
):
    service, over = make_service(deadline_s=PATIENCE_S), threading.Event()

    def begin(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        over.wait(PATIENCE_S)

    make_program(make_replica(service), begin)

    with pytest.raises(httpx.RemoteProtocolError):
        caller_of(service).get("", headers={"Berth-Deadline-Ms": "3000"})

    over.set()
    wait_until(lambda: "did not answer within" in caplog.text)
    assert "Traceback" not in caplog.text


def test_caller_is_told_when_the_database_is_away(make_service, caller_of, caplog):
    caller, table = caller_of(make_service(deadline_s=PATIENCE_S)), ServiceKey._meta.db_table
    rename(table, "away")
    try:
        answer = caller.get("")
    finally:
        rename("away", table)

    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    assert "Traceback" not in caplog.text


def rename(table: str, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")
