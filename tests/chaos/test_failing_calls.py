"""Requests whose database fails at each of their queries, or says so of a commit that it carried out (F43)."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.test import Client, RequestFactory

from orchestrator.api.http.errors import answer_error
from orchestrator.models import Job, JobState
from orchestrator.people import tokens
from tests.jobs.invariants import check_invariants

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

MOST_QUERIES = 80
BODY = json.dumps({"source": {"text": "print('on')\n"}})


class Failing:
    """Refuses the query of a number, or reports the commit of a number as failed after carrying it out."""

    def __init__(self, *, query: int = 0, commit: int = 0) -> None:
        self.query, self.commit = query, commit
        self.failed = False

    @contextmanager
    def at_work(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        connection: Any = connections["default"]
        carry_out = connection._commit

        def commit() -> None:
            carry_out()
            self.commit -= 1
            if self.commit == 0:
                self.failed = True
                raise OperationalError("the connection broke")

        with monkeypatch.context() as patched, connection.execute_wrapper(self._execute):
            patched.setattr(connection, "_commit", commit)
            yield

    def _execute(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.query -= 1
        if self.query == 0:
            self.failed = True
            raise OperationalError("database is locked")
        return execute(sql, params, many, context)


def every_failure() -> Iterator[Failing]:
    for number in range(1, MOST_QUERIES):
        yield Failing(query=number)
    for number in range(1, 6):
        yield Failing(commit=number)


@pytest.fixture
def client(home, ada, make_device) -> Client:
    make_device()
    token = tokens.issue(ada, name="t", scope="write")[1]
    return Client(headers={"Authorization": f"Token {token}"}, raise_request_exception=False)


def post(client: Client, path: str, body: str = "{}", key: str = "") -> int:
    headers = {"Idempotency-Key": key} if key else {}
    answer = client.post(f"/api/v1{path}", body, content_type="application/json", headers=headers)
    return int(answer.status_code)


def test_f42_f43_a_submit_is_taken_once_wherever_the_database_fails(client, monkeypatch):
    failures = 0
    for number, failing in enumerate(every_failure()):
        with failing.at_work(monkeypatch):
            status = post(client, "/jobs", BODY, key=f"k{number}")
        assert status in {201, 503}, (number, status)

        assert post(client, "/jobs", BODY, key=f"k{number}") == 201
        assert Job.objects.count() == number + 1
        failures += failing.failed
    check_invariants()
    assert failures > 10


@pytest.mark.parametrize(
    ("act", "state", "after"),
    [
        ("cancel", JobState.QUEUED, JobState.CANCELLED),
        ("hold", JobState.QUEUED, JobState.HELD),
        ("release", JobState.HELD, JobState.QUEUED),
    ],
)
def test_f42_f43_a_wish_is_carried_out_once_wherever_the_database_fails(
    client, make_job, monkeypatch, act, state, after
):
    for number, failing in enumerate(every_failure()):
        job = make_job(state=state)
        with failing.at_work(monkeypatch):
            status = post(client, f"/jobs/{job.pk}/{act}")
        assert status in {200, 503}, (number, status)

        assert post(client, f"/jobs/{job.pk}/{act}") == 200
        job.refresh_from_db()
        assert job.state == after
        assert job.events.exclude(from_state="").count() == 1
        if not failing.failed:
            break
    check_invariants()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OperationalError("database or disk is full"),
    ],
)
def test_f52_a_full_disk_is_said_as_such(error):
    answer = answer_error(RequestFactory().post("/api/v1/jobs"), error)

    assert answer.status_code == 507
    assert answer.headers["Retry-After"]


def test_f52_a_database_without_room_takes_nothing_by_halves_and_recovers(client):
    """A limit on its pages is what a full disk is to SQLite."""
    if connections["default"].vendor != "sqlite":
        return  # PostgreSQL has a server of its own to fill

    def ask(pragma: str) -> object:
        with connections["default"].cursor() as cursor:
            return cursor.execute(f"PRAGMA {pragma}").fetchone()[0]

    with connections["default"].cursor() as cursor:
        cursor.execute("VACUUM")  # pages that earlier tests left free would hold hundreds of jobs
    unlimited = ask("max_page_count")
    ask(f"max_page_count = {ask('page_count')}")
    try:
        answers: list[int] = []
        while 507 not in answers:
            answers.append(post(client, "/jobs", BODY, key=f"k{len(answers)}"))
            assert len(answers) < 500
        assert answers[:-1] == [201] * (len(answers) - 1)
        assert Job.objects.count() == len(answers) - 1
        assert ask("integrity_check") == "ok"
    finally:
        ask(f"max_page_count = {unlimited}")

    assert post(client, "/jobs", BODY, key=f"k{len(answers) - 1}") == 201
    assert Job.objects.count() == len(answers)
    check_invariants()
