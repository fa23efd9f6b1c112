"""Who may open a shell in a job, and what a refusal says; real shells are in tests/system/test_shells.py."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.contrib.auth.models import User
from django.db import connection

from dashboard.urls import websocket_urlpatterns
from orchestrator.api.http import rate
from orchestrator.api.resources import shells
from orchestrator.jobs import lifecycle
from orchestrator.models import AgentRules, AuditEntry, Job, JobState, Person, Role, Token
from orchestrator.people import tokens
from orchestrator.store.layout import Home
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.orders import OrderBook, ShellOrder
from orchestrator.supervisor.protocol.records import write_record
from orchestrator.supervisor.ranks import shell
from tests.unix_sockets import unix_listener
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)


def token_of(user: User, scope: str = "write") -> str:
    return tokens.issue(user, name="test", scope=scope)[1]


def visit(job: Job, text: str = "") -> ApplicationCommunicator:
    """The websocket of a client with this token."""
    scope = {
        "type": "websocket",
        "path": f"/ws/v1/jobs/{job.pk}/shell",
        "headers": [(b"authorization", f"Token {text}".encode())] if text else [],
        "client": ("10.0.0.7", 4711),
        "extensions": {"websocket.http.response": {}},
    }
    return ApplicationCommunicator(URLRouter(websocket_urlpatterns), scope)


async def refusal(job: Job, text: str = "") -> tuple[int, str]:
    """Status and sentence of a handshake that is refused."""
    socket = visit(job, text)
    await socket.send_input({"type": "websocket.connect"})
    begun = await socket.receive_output(PATIENCE_S)
    assert begun["type"] == "websocket.http.response.start", begun
    answer = await socket.receive_output(PATIENCE_S)
    await socket.wait(PATIENCE_S)
    problem: dict[str, Any] = json.loads(answer["body"])
    assert problem["status"] == begun["status"]
    return problem["status"], problem["detail"]


@pytest.fixture
def running(make_job: Callable[..., Job], make_attempt: Callable[..., Any], ada: User) -> Job:
    job: Job = make_attempt(make_job(ada), state=JobState.RUNNING).job
    return job


@pytest.fixture
def supervised(home: Home, running: Job) -> Iterator[AttemptFolder]:
    """The running job's folder, with somebody who carries out the first order: the shell repeats in capitals."""
    folder = home.job(running.pk).attempt(running.attempt_count)
    folder.orders.mkdir(parents=True)
    ended = threading.Event()

    def supervise() -> None:
        book = OrderBook(folder)
        while not ended.wait(0.01):
            for order in book.new():
                assert isinstance(order, ShellOrder)
                listener = unix_listener(folder.shell_socket(order.token))
                listener.setblocking(True)
                connection, _ = listener.accept()
                with listener, connection:
                    while data := connection.recv(1 << 16):
                        connection.sendall(data.upper())

    thread = threading.Thread(target=supervise)
    thread.start()
    yield folder
    ended.set()
    thread.join(PATIENCE_S)


async def opened(job: Job, text: str) -> ApplicationCommunicator:
    socket = visit(job, text)
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output(PATIENCE_S))["type"] == "websocket.accept"
    return socket


async def test_owner_is_connected_and_the_audit_tells(supervised, running, ada):
    socket = await opened(running, await sync_to_async(token_of)(ada))

    await socket.send_input({"type": "websocket.receive", "bytes": b"hello"})

    assert await socket.receive_output(PATIENCE_S) == {"type": "websocket.send", "bytes": b"HELLO"}
    await socket.send_input({"type": "websocket.disconnect", "code": 1000})
    await socket.wait(PATIENCE_S)
    entry = await AuditEntry.objects.aget(action="job.shell")
    assert (entry.actor, entry.address) == ("ada", "10.0.0.7")
    assert list(supervised.shells.iterdir()) == []


async def test_caller_without_a_token_is_refused(running):
    status, sentence = await refusal(running)

    assert status == 401
    assert "Authorization: Token" in sentence


async def test_unknown_token_is_refused(running):
    assert (await refusal(running, "berth_nonsense"))[0] == 401


async def test_token_that_only_reads_is_refused(running, ada):
    status, sentence = await refusal(running, await sync_to_async(token_of)(ada, "read"))

    assert status == 403
    assert "needs write" in sentence


async def test_agent_is_refused(running, ada):
    def agents_token() -> str:
        token, text = tokens.issue(ada, name="claude", scope="write")
        AgentRules.objects.create(token=token, width=1, plan_first=False)
        return text

    status, sentence = await refusal(running, await sync_to_async(agents_token)())

    assert status == 403
    assert "a person's own token" in sentence


async def test_owner_who_may_only_read_by_now_is_refused(running, ada):
    text = await sync_to_async(token_of)(ada)
    await Person.objects.acreate(user=ada, role=Role.VIEWER)

    assert (await refusal(running, text))[0] == 403


async def test_not_even_an_admin_may_enter_the_job_of_another(running, root):
    status, sentence = await refusal(running, await sync_to_async(token_of)(root, "admin"))

    assert status == 403
    assert sentence.startswith("Only its owner may open a shell")


async def test_job_that_others_may_not_see_does_not_exist_for_them(running, bob):
    assert (await refusal(running, await sync_to_async(token_of)(bob)))[0] == 404


async def test_waiting_job_has_no_shell(make_job, ada):
    waiting = await sync_to_async(make_job)(ada)

    status, sentence = await refusal(waiting, await sync_to_async(token_of)(ada))

    assert (status, sentence) == (409, "This job is queued; a shell opens while it is running.")


async def test_word_of_the_supervisor_reaches_the_caller(home, running, ada):
    folder = home.job(running.pk).attempt(running.attempt_count)
    folder.orders.mkdir(parents=True)
    book = OrderBook(folder)
    ended = threading.Event()

    def supervise() -> None:
        while not ended.wait(0.01):
            for order in book.new():
                assert isinstance(order, ShellOrder)
                shell.refuse(folder, order.token, "8 connections to this run are open already.")

    thread = threading.Thread(target=supervise)
    thread.start()

    answer = await refusal(running, await sync_to_async(token_of)(ada))

    ended.set()
    thread.join(PATIENCE_S)
    assert answer == (409, "8 connections to this run are open already.")


async def test_shell_that_waits_for_its_run_keeps_nobody_else_waiting(home, running, make_job, ada):
    folder = home.job(running.pk).attempt(running.attempt_count)
    folder.orders.mkdir(parents=True)
    text, waiting = await sync_to_async(token_of)(ada), await sync_to_async(make_job)(ada)
    socket = visit(running, text)
    await socket.send_input({"type": "websocket.connect"})
    while not list(folder.orders.iterdir()):  # which no supervisor carries out
        await asyncio.sleep(0.01)

    assert (await refusal(waiting, text))[0] == 409

    assert await socket.receive_nothing()
    write_record(folder.exit, {})
    assert (await socket.receive_output(PATIENCE_S))["status"] == 409
    await socket.wait(PATIENCE_S)


async def test_connection_ends_once_its_token_is_revoked(supervised, running, ada, monkeypatch):
    monkeypatch.setattr(shells, "AGAIN_S", 0.05)
    text = await sync_to_async(token_of)(ada)
    socket = await opened(running, text)

    await Token.objects.filter(user=ada).adelete()

    assert await socket.receive_output(PATIENCE_S) == {
        "type": "websocket.close",
        "code": 1008,
        "reason": "This token is unknown, expired or revoked.",
    }
    await socket.wait(PATIENCE_S)


async def test_connection_to_a_job_that_stops_says_so(supervised, running, ada, monkeypatch):
    monkeypatch.setattr(shells, "AGAIN_S", 0.05)
    socket = await opened(running, await sync_to_async(token_of)(ada))

    await sync_to_async(lifecycle.cancel)(running, by="ada")

    closed = await socket.receive_output(PATIENCE_S)
    assert closed["reason"] == "This job is stopping; a shell opens while it is running."
    await socket.wait(PATIENCE_S)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the looks whether a caller may still be there have found."""
    found: list[bool] = []
    why_over = shells._why_over

    def look(*arguments: Any) -> str:
        why = "an error"
        try:
            why = why_over(*arguments)
        finally:
            found.append(not why)
        return why

    monkeypatch.setattr(shells, "_why_over", look)
    monkeypatch.setattr(shells, "AGAIN_S", 0.05)
    return found


async def answers(socket: ApplicationCommunicator, looks: list[bool]) -> bool:
    """Whether a shell answers after two further looks."""
    count = len(looks)
    while len(looks) < count + 2 and all(looks):
        await asyncio.sleep(0.01)
    if not all(looks):
        return False
    await socket.send_input({"type": "websocket.receive", "bytes": b"hello"})
    answer = await socket.receive_output(PATIENCE_S)
    return bool(answer == {"type": "websocket.send", "bytes": b"HELLO"})


async def leave(socket: ApplicationCommunicator) -> None:
    await socket.send_input({"type": "websocket.disconnect", "code": 1000})
    await socket.wait(PATIENCE_S)


async def test_shell_stays_open_when_too_many_requests_come_beside_it(
    supervised, running, ada, looks, monkeypatch
):
    monkeypatch.setattr(rate, "requests", rate.Rate(a_second=0.0, burst=2.0))
    socket = await opened(running, await sync_to_async(token_of)(ada))

    assert await answers(socket, looks)
    await leave(socket)


async def test_shell_stays_open_through_a_moment_without_the_database(supervised, running, ada, looks):
    socket = await opened(running, await sync_to_async(token_of)(ada))
    table = Token._meta.db_table

    await sync_to_async(rename)(table, "away")
    try:
        assert await answers(socket, looks)
    finally:
        await sync_to_async(rename)("away", table)
    await leave(socket)


async def test_shell_stays_open_when_the_part_of_an_id_fits_a_later_job_too(
    supervised, running, ada, looks, make_job
):
    socket = visit(running, await sync_to_async(token_of)(ada))
    part = str(running.pk)[:6]
    socket.scope["path"] = f"/ws/v1/jobs/{part}/shell"
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output(PATIENCE_S))["type"] == "websocket.accept"

    later = await sync_to_async(make_job)(ada)

    assert str(later.pk).startswith(part)
    assert await answers(socket, looks)
    await leave(socket)


def rename(table: str, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")


async def test_server_that_cannot_answer_a_handshake_closes_it(running):
    socket = visit(running)
    socket.scope["extensions"] = {}
    await socket.send_input({"type": "websocket.connect"})

    assert (await socket.receive_output(PATIENCE_S))["type"] == "websocket.close"
    await socket.wait(PATIENCE_S)
