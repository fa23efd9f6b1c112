"""Attacks on the proxy: another's ticket, a stolen cookie, other sites, tricks with paths and lengths, slow senders."""

import contextlib
import socket
import threading

import httpx
import pytest
from django.test import Client
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from orchestrator.models import SessionPass
from orchestrator.sessions import passes
from orchestrator.sessions.addresses import WrongAddress, check_path
from orchestrator.sessions.proxy import plain
from tests.unix_sockets import unix_listener

pytestmark = pytest.mark.django_db(transaction=True)
BERTH = {"host": "127.0.0.1"}


def cookie_of(browser) -> str:
    return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def ticket_for(berth: Client, job, browser: httpx.Client) -> str:
    """The address with the ticket that this browser would go to next."""
    begin = berth.get(f"/sessions/{job.pk}/open", headers=BERTH)["Location"]
    back = browser.get(begin).headers["location"].partition("127.0.0.1")[2]
    return berth.get(back, headers=BERTH)["Location"]


@pytest.fixture
def berth(ada) -> Client:
    client = Client()
    client.force_login(ada)
    return client


def test_without_a_pass_nothing_is_reached(make_session, port):
    assert httpx.get(port.base(make_session())).status_code == 401


def test_another_person_gets_no_ticket(make_session, reader_of, port, bob):
    job = make_session()

    assert reader_of(bob).get(f"/sessions/{job.pk}/open", headers=BERTH).status_code == 404
    assert (
        reader_of(bob).get(f"/sessions/{job.pk}/ticket?browser={'0' * 64}", headers=BERTH).status_code == 404
    )


def test_not_even_an_admin_gets_a_ticket(make_session, reader_of, port, root):
    job = make_session()

    for place in ("open", f"ticket?browser={'0' * 64}"):
        answer = reader_of(root).get(f"/sessions/{job.pk}/{place}", headers=BERTH)
        assert answer["Location"] == "/sessions"
    assert not SessionPass.objects.exists()


def test_ticket_of_another_browser_is_refused(make_session, berth, port):
    job = make_session()
    with httpx.Client() as mine, httpx.Client() as thief:
        address = ticket_for(berth, job, mine)
        ticket_for(berth, job, thief)  # the thief's browser has a mark, but of another ticket

        assert thief.get(address).status_code == 401
        assert httpx.get(address).status_code == 401


def test_ticket_works_once(make_session, berth, port):
    job = make_session()
    with httpx.Client() as browser:
        address = ticket_for(berth, job, browser)
        mark = cookie_of(browser)

        assert browser.get(address).status_code == 303
    assert httpx.get(address, headers={"Cookie": mark}).status_code == 401


def test_ticket_that_is_too_old_is_refused(make_session, berth, port):
    with httpx.Client() as browser:
        address = ticket_for(berth, make_session(), browser)
        SessionPass.objects.update(ticket_ends_at="2020-01-01T00:00:00Z")

        assert browser.get(address).status_code == 401


def test_ticket_of_one_session_does_not_open_another(make_session, berth, port):
    job, other = make_session(), make_session(listens=False)
    with httpx.Client() as browser:
        address = ticket_for(berth, job, browser)
        mark = cookie_of(browser)

    assert httpx.get(address.replace(str(job.pk), str(other.pk)), headers={"Cookie": mark}).status_code == 401


def test_cookie_of_one_session_does_not_open_another(ada, make_session, enter, port):
    browser = enter(ada, make_session())
    other = make_session(listens=False)

    assert httpx.get(port.base(other), headers={"Cookie": cookie_of(browser)}).status_code == 401


def test_cookie_that_a_neighbour_adds_neither_opens_nor_locks_out(ada, make_session, enter, port):
    job = make_session()
    browser = enter(ada, job)

    both = {"Cookie": f"berth_door=forged; {cookie_of(browser)}"}
    assert httpx.get(port.base(job), headers=both).status_code == 200
    assert httpx.get(port.base(job), headers={"Cookie": "berth_door=forged"}).status_code == 401


@pytest.mark.parametrize("kind", ["foreign", "changed", "empty"])
def test_way_back_to_berth_leads_nowhere_else(make_session, port, kind):
    back = {"foreign": "https://evil.example/", "changed": passes.sign_return("/x") + "y", "empty": ""}[kind]

    answer = httpx.get(port.base(make_session(listens=False)) + ".berth/begin", params={"back": back})

    assert answer.status_code == 401
    assert "location" not in answer.headers


def test_websocket_of_another_origin_is_refused(ada, make_session, enter, port):
    job = make_session()
    browser = enter(ada, job)

    for origin in (None, *map(Origin, ("null", "http://evil.example", "http://127.0.0.1:1"))):
        with pytest.raises(InvalidStatus) as refused:
            connect(
                port.base(job).replace("http", "ws"),
                origin=origin,
                additional_headers={"Cookie": cookie_of(browser)},
            )
        assert refused.value.response.status_code == 403, origin


def test_request_of_another_sites_page_is_refused(ada, make_session, enter):
    browser = enter(ada, make_session())

    for method, headers in (
        ("POST", {"Origin": "http://evil.example"}),
        ("DELETE", {"Origin": "null"}),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}),
    ):
        assert browser.request(method, "api/contents", headers=headers).status_code == 403, headers


@pytest.mark.parametrize(
    "path",
    [
        b"/s/x/../y",
        b"/s/x/%2e%2e/y",
        b"/s/x/%2E./y",
        b"/s/x/./y",
        b"/s/x\\..\\y",
        b"/s/x/%5c..%5cy",
        b"/s/x/%00",
        b"/s/x/%0d%0aSet-Cookie:a",
        b"/s/x/\xff",
        b"/s/x/ y",
        b"s/x",
        b"/" + b"x" * 9000,
    ],
)
def test_path_that_two_programs_could_read_differently_is_refused(path):
    with pytest.raises(WrongAddress):
        check_path(path)


def test_path_with_dots_reaches_no_other_session(ada, make_session, enter, port):
    job, other = make_session(), make_session(listens=False)
    browser = enter(ada, job)

    answer = port.raw(
        f"GET /s/{job.pk}/../{other.pk}/ HTTP/1.1\nHost: {port.host}\nCookie: {cookie_of(browser)}\n"
        "Connection: close\n\n"
    )

    assert status_of(answer) == 404


def test_other_host_names_are_refused(ada, make_session, enter, port):
    job = make_session(listens=False)
    browser = enter(ada, job)

    for host in ("evil.example", "evil.example:80", ""):
        answer = port.raw(
            f"GET /s/{job.pk}/ HTTP/1.1\nHost: {host}\nCookie: {cookie_of(browser)}\nConnection: close\n\n"
        )
        assert status_of(answer) in (400, 404, 421), host
        assert b"does not answer yet" not in answer


def test_request_with_an_unclear_end_is_refused(ada, make_session, enter, port):
    job = make_session()
    browser = enter(ada, job)

    for lengths in (
        "Content-Length: 5\nTransfer-Encoding: chunked",
        "Content-Length: 5\nContent-Length: 6",
        "Content-Length: 5\nContent-Length: 5",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: identity",
    ):
        answer = port.raw(
            f"POST /s/{job.pk}/api HTTP/1.1\nHost: {port.host}\nCookie: {cookie_of(browser)}\n{lengths}\n\n"
            "0\n\nGET /smuggled HTTP/1.1\nHost: x\n\n"
        )
        assert status_of(answer) == 400, lengths
        assert answer.count(b"HTTP/1.1") == 1, lengths


def test_body_that_announces_five_gigabytes_is_refused_at_once(ada, make_session, enter, port):
    job = make_session()
    browser = enter(ada, job)

    answer = port.raw(
        f"PUT /s/{job.pk}/x HTTP/1.1\nHost: {port.host}\nCookie: {cookie_of(browser)}\n"
        f"Content-Length: {5 * 1024**3}\n\n"
    )

    assert status_of(answer) == 413


def test_body_that_grows_over_the_limit_is_cut(ada, make_session, enter, port, monkeypatch):
    monkeypatch.setattr(plain, "BODY_BYTES", 50_000)
    job = make_session()
    browser = enter(ada, job)

    answer = port.raw(
        f"PUT /s/{job.pk}/x HTTP/1.1\nHost: {port.host}\nCookie: {cookie_of(browser)}\n"
        f"Transfer-Encoding: chunked\n\n{60_000:x}\n{'x' * 60_000}\n"
    )

    assert status_of(answer) == 413


def test_body_that_stops_halfway_is_given_up(ada, make_session, enter, port, monkeypatch):
    monkeypatch.setattr(plain, "LONGEST_PAUSE_S", 0.01)
    job = make_session()
    browser = enter(ada, job)

    answer = port.raw(
        f"PUT /s/{job.pk}/x HTTP/1.1\nHost: {port.host}\nCookie: {cookie_of(browser)}\nContent-Length: 9\n\nabc"
    )

    assert status_of(answer) == 408


def test_head_that_is_too_long_is_refused(make_session, port):
    job = make_session(listens=False)

    answer = port.raw(f"GET /s/{job.pk}/ HTTP/1.1\nHost: {port.host}\nX: {'x' * 70_000}")

    assert status_of(answer) == 431


def test_socket_that_is_a_link_to_another_is_not_followed(ada, home, make_session, enter):
    """A session could point its socket at Redis, or at the session of somebody else."""
    job = make_session(listens=False)
    path = home.job(job.pk).attempt(1).session_socket
    with unix_listener(home.root / "redis" / "redis.sock") as redis:
        path.symlink_to(home.root / "redis" / "redis.sock")

        assert enter(ada, job).get("").status_code == 503
        with pytest.raises(BlockingIOError):
            redis.accept()


def test_program_that_speaks_no_http_gets_the_browser_an_error(ada, home, make_session, enter):
    job = make_session(listens=False)
    listener = unix_listener(home.job(job.pk).attempt(1).session_socket)
    listener.setblocking(True)
    browser = enter(ada, job)

    for said in (
        b"nonsense\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    ):
        thread = threading.Thread(target=_answer_once, args=(listener, said))
        thread.start()
        assert browser.get("").status_code == 502, said[:40]
        thread.join()
    listener.close()


def _answer_once(listener: socket.socket, said: bytes) -> None:
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):  # the proxy may hang up first
        connection.recv(65536)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


def test_browser_that_leaves_ends_the_request_to_the_program(ada, home, make_session, enter, port):
    job = make_session(listens=False)
    listener = unix_listener(home.job(job.pk).attempt(1).session_socket)
    listener.setblocking(True)
    browser = enter(ada, job)
    with socket.create_connection(("127.0.0.1", port.number)) as gone:
        gone.sendall(
            f"GET /s/{job.pk}/ HTTP/1.1\r\nHost: {port.host}\r\nCookie: {cookie_of(browser)}\r\n\r\n".encode()
        )
        connection, _ = listener.accept()
        assert connection.recv(65536)

    assert connection.recv(65536) == b""  # closed by the proxy, though the program never answered
    connection.close()
    listener.close()
