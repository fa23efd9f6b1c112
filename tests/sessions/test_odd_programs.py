"""Programs and browsers that use HTTP and websockets in unusual, but valid ways."""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pytest
from django.db import connection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import Server, ServerConnection, unix_serve

from orchestrator.jobs import lifecycle
from orchestrator.models import Job, SessionPass
from orchestrator.sessions.proxy import door, plain
from tests.sessions.test_proxy import cookie_of
from tests.unix_sockets import Answer, Program, connected, unix_listener
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def job(make_session) -> Job:
    made: Job = make_session(listens=False)
    return made


@pytest.fixture
def program(home, job) -> Iterator[Callable[..., Program]]:
    """Start the session's program."""
    running: list[Program] = []

    def begin(answer: Answer) -> Program:
        running.append(Program(unix_listener(home.job(job.pk).attempt(1).session_socket), answer))
        return running[-1]

    yield begin
    for each in running:
        each.close()


@pytest.fixture
def sockets(home, job) -> Iterator[Callable[[Callable[[ServerConnection], None]], None]]:
    """Start the session's program, which takes websockets."""
    running: list[Server] = []

    def begin(handle: Callable[[ServerConnection], None], **options: Any) -> None:
        listener = unix_listener(home.job(job.pk).attempt(1).session_socket)
        listener.setblocking(True)
        running.append(unix_serve(handle, sock=listener, **options))
        threading.Thread(target=running[-1].serve_forever, daemon=True).start()

    yield begin
    for each in running:
        each.shutdown()


@pytest.fixture
def channel(ada, job, enter, port) -> Callable[..., ClientConnection]:
    """Open a websocket of the session."""

    def begin(path: str = "") -> ClientConnection:
        cookie = cookie_of(enter(ada, job))
        address = port.base(job).replace("http", "ws") + path
        return connect(
            address, origin=port.origin, additional_headers={"Cookie": cookie}, open_timeout=PATIENCE_S
        )

    return begin


def test_answer_with_two_lengths_ends_where_its_chunks_end(ada, job, enter, program):
    program(
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n"
    )

    answer = enter(ada, job).get("")

    assert answer.text == "hello"
    assert "content-length" not in answer.headers


@pytest.mark.parametrize("status", [b"304 Not Modified", b"204 No Content"], ids=["304", "204"])
def test_answer_without_a_body_keeps_the_connection_though_it_names_a_length(
    ada, job, enter, port, program, status
):
    program(b"HTTP/1.1 " + status + b"\r\nETag: 1\r\nContent-Length: 9\r\n\r\n")
    headers = {"Cookie": cookie_of(enter(ada, job))}
    connection = http.client.HTTPConnection(port.host, timeout=PATIENCE_S)
    connection.connect()
    kept = connection.sock

    for _ in range(2):
        connection.request("GET", f"/s/{job.pk}/", headers=headers)
        answer = connection.getresponse()
        assert (str(answer.status), answer.read()) == (status[:3].decode(), b"")

    assert connection.sock is kept
    connection.close()


def test_answer_has_one_date(ada, job, enter, program):
    program(OK.replace(b"Content-Length", b"Date: Sun, 29 Nov 2026 00:00:00 GMT\r\nContent-Length"))

    assert len(enter(ada, job).get("").headers.get_list("date")) == 1


def test_answer_that_ends_early_is_incomplete_and_leaves_no_trace(ada, job, enter, program, caplog):
    program(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")

    with pytest.raises(httpx.RemoteProtocolError):
        enter(ada, job).get("")

    wait_until(lambda: "its answer ended early" in caplog.text)
    assert "Traceback" not in caplog.text


def test_head_keeps_the_length_of_what_it_describes(ada, job, enter, program):
    program(b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n")

    answer = enter(ada, job).head("big.bin")

    assert (answer.status_code, answer.headers["content-length"]) == (200, "12345")


@pytest.mark.parametrize(
    "switch", [b"", b"Upgrade: websocket\r\nConnection: Upgrade\r\n"], ids=["bare", "named"]
)
def test_program_that_switches_protocols_unasked_gets_the_browser_an_error(ada, job, enter, program, switch):
    program(b"HTTP/1.1 101 Switching Protocols\r\n" + switch + b"\r\n")

    assert enter(ada, job).get("").status_code == 502


def test_hints_before_an_answer_do_not_stand_for_it(ada, job, enter, program):
    program(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" + OK)

    assert enter(ada, job).get("").text == "ok"


def test_blanks_after_a_header_are_no_part_of_it(ada, job, enter, port, program):
    told = program(OK)
    cookie = cookie_of(enter(ada, job))

    answer = port.raw(
        f"GET /s/{job.pk}/ HTTP/1.1\nHost: {port.host}\nX-Note: a b \t \nX-None:  \nCookie: {cookie}\n"
        "Connection: close\n\n"
    )

    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert b"x-note: a b\r\n" in told.heads[0].lower()


def test_header_that_no_program_could_read_is_refused(ada, job, enter, port, program):
    program(OK)
    cookie = cookie_of(enter(ada, job))

    answer = port.raw(
        f"GET /s/{job.pk}/ HTTP/1.1\nHost: {port.host}\nX-Note: a\x0bb\nCookie: {cookie}\nConnection: close\n\n"
    )

    assert answer.startswith(b"HTTP/1.1 400"), answer


def test_upload_may_take_longer_than_an_answer(ada, job, enter, program, monkeypatch):
    monkeypatch.setattr(plain, "FIRST_ANSWER_S", 3.0)

    def read_all(connection, head) -> None:
        data = head
        while b"0\r\n\r\n" not in data:
            data += connection.recv(65536)
        connection.sendall(OK)

    program(read_all)

    def pieces() -> Iterator[bytes]:
        for _ in range(12):
            yield b"x" * 1000
            time.sleep(0.4)

    assert enter(ada, job).put("big.bin", content=pieces()).text == "ok"


def test_program_that_never_answers_is_given_up(ada, job, enter, program, monkeypatch):
    monkeypatch.setattr(plain, "FIRST_ANSWER_S", 0.2)
    over = threading.Event()
    program(lambda connection, head: over.wait(PATIENCE_S))

    answer = enter(ada, job).post("x", content=b"abc")

    over.set()
    assert answer.status_code == 502


def test_stream_ends_when_the_pass_ends(ada, job, enter, program, monkeypatch):
    monkeypatch.setattr(plain, "AGAIN_S", 0.05)
    over = threading.Event()

    def tell_for_ever(connection, head) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while not over.wait(0.02):
            connection.sendall(b"data: more\n\n")
            if time.monotonic() > until_s:
                return

    until_s = time.monotonic() + 120
    program(tell_for_ever)
    with enter(ada, job).stream("GET", "events") as stream:
        told = stream.iter_raw()
        assert next(told)
        SessionPass.objects.all().delete()

        with pytest.raises(httpx.RemoteProtocolError):
            for _ in told:
                pass

    over.set()


def test_websocket_that_is_sent_elsewhere_is_refused(job, program, channel):
    program(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")

    with pytest.raises(InvalidStatus) as refused:
        channel()

    assert refused.value.response.status_code == 403


def test_address_of_a_websocket_arrives_whole(job, sockets, channel):
    sockets(lambda connection: connection.send(cast(Request, connection.request).path))

    with channel("api;v=1?q=a;b") as opened:
        assert opened.recv(PATIENCE_S) == f"/s/{job.pk}/api%3Bv=1?q=a;b"


def test_websocket_that_a_program_ends_without_a_code_has_ended_normally(sockets, channel):
    def end(connection: ServerConnection) -> None:
        connection.protocol.send_close()
        connection.socket.sendall(b"".join(connection.protocol.data_to_send()))
        connection.recv()

    sockets(end)

    with channel() as opened, pytest.raises(ConnectionClosed):
        opened.recv(PATIENCE_S)

    assert opened.close_code == 1000


def test_code_and_reason_of_a_close_cross_both_ways(sockets, channel):
    closed: list[tuple[int | None, str | None]] = []
    over = threading.Event()

    def take(connection: ServerConnection) -> None:
        if cast(Request, connection.request).path.endswith("theirs"):
            connection.close(4321, "no such kernel")
            return
        with pytest.raises(ConnectionClosed):
            connection.recv(PATIENCE_S)
        closed.append((connection.close_code, connection.close_reason))
        over.set()

    sockets(take)

    with channel("theirs") as opened, pytest.raises(ConnectionClosed):
        opened.recv(PATIENCE_S)
    assert (opened.close_code, opened.close_reason) == (4321, "no such kernel")
    with channel("ours") as opened:
        opened.close(4322, "tab closed")
    assert over.wait(PATIENCE_S)
    assert closed == [(4322, "tab closed")]


def test_websocket_of_a_session_that_stops_says_so(ada, job, sockets, channel, monkeypatch):
    monkeypatch.setattr(plain, "AGAIN_S", 0.05)
    sockets(lambda program: [program.send(each) for each in program])

    with channel() as opened:
        opened.send("a key")
        assert opened.recv(PATIENCE_S) == "a key"
        lifecycle.cancel(job, by="ada")
        with pytest.raises(ConnectionClosed):
            opened.recv(PATIENCE_S)

    assert opened.close_reason == "This session is stopping."


def test_moment_without_the_database_closes_no_websocket(sockets, channel, monkeypatch, caplog):
    monkeypatch.setattr(plain, "AGAIN_S", 0.05)
    sockets(lambda program: [program.send(each) for each in program])
    table = SessionPass._meta.db_table

    with channel() as opened:
        opened.send("a key")
        assert opened.recv(PATIENCE_S) == "a key"
        rename(table, "away")
        try:
            wait_until(lambda: "could not be read" in caplog.text)
        finally:
            rename("away", table)
        opened.send("another")
        assert opened.recv(PATIENCE_S) == "another"


def test_browser_is_told_when_the_database_is_away(ada, job, enter, program, caplog):
    program(OK)
    browser, table = enter(ada, job), SessionPass._meta.db_table
    rename(table, "away")
    try:
        answer = browser.get("")
    finally:
        rename("away", table)

    assert (answer.status_code, answer.headers["refresh"]) == (503, "5")
    assert "database does not answer" in answer.text
    assert "Traceback" not in caplog.text
    assert browser.get("").text == "ok"


def rename(table: str, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")


def test_browser_waits_while_the_programs_queue_is_full(ada, home, job, enter):
    path = home.job(job.pk).attempt(1).session_socket
    browser, answers = enter(ada, job), []
    listener = unix_listener(path)
    listener.listen(0)
    before = [connected(path)]
    thread = threading.Thread(target=lambda: answers.append(browser.get("").text))
    thread.start()
    thread.join(1)
    assert thread.is_alive(), answers

    for each in before:
        each.close()
    program = Program(listener, OK)
    thread.join(PATIENCE_S)

    assert answers == ["ok"]
    program.close()


def test_one_persons_connections_are_limited(ada, job, sockets, channel, enter, monkeypatch):
    monkeypatch.setattr(door, "MOST_OPEN", 2)
    sockets(lambda program: [program.send(each) for each in program])

    with channel(), channel():
        with pytest.raises(InvalidStatus):
            channel()
        refused = enter(ada, job).get("")
        assert (refused.status_code, refused.headers["refresh"]) == (503, "5")

    wait_until(lambda: enter(ada, job).get("").status_code != 503)
