"""What goes through the door of services to a replica's program and back."""

import socket
import threading

import pytest

from orchestrator.services import health
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_request_reaches_the_program_and_its_answer_the_caller(
    make_service, make_replica, make_program, caller_of
):
    service = make_service()
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

    silent, other = make_service("silent", health_path="/ready", deadline_s=PATIENCE_S), make_service("other")
    make_program(make_replica(silent, ready_attempt=0), stay_silent)
    make_program(make_replica(other), OK)
    waiting = caller_of(silent)
    first = threading.Thread(target=lambda: waiting.get(""))
    first.start()
    wait_until(asked.is_set)

    try:
        assert caller_of(other).get("", timeout=30).text == "ok"
    finally:
        over.set()
        first.join(PATIENCE_S)
