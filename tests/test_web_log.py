"""The errors of a server in its log: each is told once, with its traceback, and nothing else is taken for one."""

import pytest

from tests.web_log import WebLog, errors_in, take_errors

ERROR = """\
2026-11-28 00:50:16,461 ERROR orchestrator.api.http.errors: Error 4e7fa241 at GET /api/v1/jobs
Traceback (most recent call last):
  File "sweep_rows.py", line 189, in best_over_cost
ValueError: zip() argument 2 is longer than argument 1
"""
STATUS = "2026-11-28 00:50:16,467 ERROR django.request: Internal Server Error: /api/v1/jobs\n"
OTHERS = """\
INFO:     Application startup complete.
2026-11-28 00:50:15,000 WARNING orchestrator.api.http.errors: The database did not answer GET /: locked
2026-11-28 00:50:15,001 ERROR django.request: Service Unavailable: /api/v1/models
2026-11-28 00:50:15,002 WARNING django.request: Not Found: /ERROR django.request: Internal Server Error: /x
2026-11-28 00:50:15,003 INFO orchestrator.jobs: Error 4e7fa241 at GET /api/v1/jobs was told
"""


@pytest.fixture
def log(tmp_path) -> WebLog:
    return WebLog(tmp_path / "web.log")


def test_an_error_comes_with_its_traceback_and_without_what_follows():
    assert errors_in(OTHERS + ERROR + OTHERS) == [ERROR.rstrip()]
    assert errors_in(ERROR + STATUS) == [ERROR.rstrip(), STATUS.rstrip()]


@pytest.mark.parametrize(
    "line",
    [
        "ERROR:    Exception in ASGI application",
        '{"event": "Internal Server Error: /jobs", "level": "error", "logger": "django.request"}',
    ],
)
def test_errors_past_django_and_of_logs_in_json_are_found(line):
    assert errors_in(f"{OTHERS}{line}\n") == [line]


def test_what_is_no_error_inside_is_none():
    assert errors_in(OTHERS) == []


def test_each_error_is_told_once_also_when_the_log_begins_again(log):
    assert take_errors() == ""
    log.path.write_text(OTHERS + ERROR)

    assert "Error 4e7fa241" in take_errors()
    assert take_errors() == ""
    log.path.write_text(STATUS)
    assert "Internal Server Error" in take_errors()


def test_a_server_whose_folder_went_still_tells_what_it_read(log):
    log.path.write_text(ERROR)
    log.close()
    log.path.unlink()

    assert str(log.path) in take_errors()


def test_a_test_may_say_that_it_provokes_errors(log):
    log.allowed = "the disk is full on purpose"
    log.path.write_text(ERROR)

    assert take_errors() == ""
