"""Every failure is problem+json with a sentence, and never more."""

import errno
import logging
import os

import pytest
from django.db import OperationalError, connection

from orchestrator.exceptions import OrchestratorError, Unavailable
from orchestrator.models import Job

from .test_access import OF_SITES, address, every_route


def test_a_problem_has_the_fields_of_rfc_9457(client_of, ada):
    answer = client_of(ada).send("GET", "/jobs/00000000")

    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json() == {
        "type": "urn:berth:problem:not_found",
        "title": "Not Found",
        "status": 404,
        "code": "not_found",
        "detail": "There is no job '00000000', or you may not see it.",
        "errors": {},
    }


@pytest.mark.parametrize("path", ["/", "/nothing", "/jobs/", "/tokens/x", "/jobs/a/b/c/d", "/../admin/"])
def test_addresses_that_are_not_there_are_problems_too(path, client_of, ada):
    answer = client_of(ada).send("GET", path)

    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")


def test_a_name_that_the_server_does_not_go_by_is_said_to_programs_and_people(anonymous):
    answer = anonymous.send("GET", "/jobs", Host="gpu-box")
    page = anonymous.get("/", headers={"Host": "gpu-box"})

    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert "BERTH_ALLOWED_HOSTS" in answer.json()["detail"]
    assert (page.status_code, b"BERTH_ALLOWED_HOSTS" in page.content) == (400, True)


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "TRACE", "FOO"])
def test_b67_other_methods_are_405(method, client_of, ada):
    answer = client_of(ada).send(method, "/jobs")

    assert (answer.status_code, answer["Content-Type"]) == (405, "application/problem+json")
    assert "POST" in answer["Allow"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_f71_a_process_that_can_open_no_more_files_answers_503_and_recovers(number, client_of, ada):
    client = client_of(ada)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with connection.execute_wrapper(fail):
        answer = client.send("GET", "/jobs")

    assert (answer.status_code, answer["Retry-After"]) == (503, "2")
    assert answer.json()["detail"] == "The server has too many files open. Try again in a moment."
    assert client.send("GET", "/jobs").status_code == 200


@pytest.mark.parametrize(
    "said",
    [
        "deadlock detected",
        "could not serialize access due to concurrent update",
        "FATAL:  sorry, too many clients already",
    ],
)
def test_f45_f46_a_deadlock_and_a_full_pool_are_503_and_leave_nothing_behind(
    said, client_of, ada, make_device
):
    """Whoever sends it again with the same key has one job."""
    make_device()
    client = client_of(ada)
    body = {"source": {"text": "print(1)\n"}}
    failing = True

    def fail_at_the_insert(execute, sql, *rest):  # the last moment before the commit
        if failing and sql.startswith("INSERT") and "outbox" in sql:
            raise OperationalError(said)
        return execute(sql, *rest)

    with connection.execute_wrapper(fail_at_the_insert):
        refused = client.send("POST", "/jobs", body, **{"Idempotency-Key": "once"})
        there = Job.objects.count()
        failing = False
        answered = [
            client.send("POST", "/jobs", body, **{"Idempotency-Key": "once"}).json() for _ in range(2)
        ]

    assert (refused.status_code, refused["Retry-After"]) == (503, "2")
    assert (there, Job.objects.count()) == (0, 1)
    assert answered[0]["id"] == answered[1]["id"]


@pytest.mark.parametrize("error", [OperationalError("database is locked"), Unavailable("Try again.")])
def test_a_locked_database_is_503_with_retry_after(error, client_of, ada):
    client = client_of(ada)

    def fail(*_: object) -> None:
        raise error

    with connection.execute_wrapper(fail):
        answer = client.send("GET", "/jobs")

    assert answer.status_code == 503
    assert int(answer["Retry-After"]) > 0
    assert "locked" not in answer.json()["detail"]


@pytest.mark.parametrize(
    "error", [RuntimeError("secret detail"), KeyError("secret detail"), OrchestratorError("x")]
)
def test_our_own_mistakes_are_calm_500s_with_a_number_in_the_log(error, client_of, ada, caplog):
    client = client_of(ada)

    def fail(*_: object) -> None:
        raise error

    with connection.execute_wrapper(fail), caplog.at_level(logging.ERROR):
        answer = client.send("GET", "/jobs")

    assert answer.status_code == 500
    assert b"secret" not in answer.content
    assert b"Traceback" not in answer.content
    if not isinstance(error, OrchestratorError):
        number = answer.json()["detail"].split("the number ")[1][:8]
        assert any(number in record.getMessage() and record.exc_info for record in caplog.records)


HOSTILE_VALUES = ["%2e%2e", "%F0%9F%98%80", "a" * 5000, "%0a", "-1", "9" * 40, "%ff", "None"]
HOSTILE = [
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"{}",
    b"[" * 5000,
    b"\xff\xfe",
    b'{"x": NaN}',
    b'{"\\u0000": "\\u0000"}',
    b'{"\\ud800": "\\udfff"}',
    b'{"\\ud800": 1, "\\ud800": 2}',
]


@pytest.mark.parametrize(("method", "path"), [each for each in every_route() if each[0] != "get"])
def test_no_route_answers_500_to_a_hostile_body(method, path, client_of, root, make_job, make_device):
    make_device(0)
    client, job = client_of(root), make_job()
    client.raise_request_exception = True

    for body in HOSTILE:
        assert client.send(method.upper(), address(path, job.pk), body).status_code < 500, body


@pytest.mark.parametrize(
    ("method", "path"), [each for each in every_route() if "{" in each[1] and each[1] not in OF_SITES]
)
@pytest.mark.parametrize("value", HOSTILE_VALUES)
def test_no_route_answers_500_to_a_hostile_address(method, path, value, client_of, root, make_device):
    make_device(0)
    parts = [
        "jobs" if part == "jobs" else value if part.startswith("{") else part for part in path.split("/")
    ]

    assert client_of(root).send(method.upper(), "/".join(parts), {}).status_code in {
        204,
        400,
        404,
    }  # 204: deleting what is not there is harmless
