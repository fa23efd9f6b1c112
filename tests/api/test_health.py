"""Health for people, load balancers and start scripts."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from orchestrator.live import readings
from orchestrator.models import Errand, Outbox


@pytest.fixture
def agent_reads(home):
    readings.write_now(replace(readings.NOTHING_READ, seq=1, taken_at=time.time(), stream="s"))


def dependencies(answer) -> dict[str, str]:
    return {name: each["state"] for name, each in answer.json()["dependencies"].items()}


def test_alive_needs_neither_login_nor_database(anonymous):
    assert anonymous.send("GET", "/health/live").json() == {"status": "ok"}


def test_ready_names_each_dependency(anonymous, db, agent_reads):
    answer = anonymous.send("GET", "/health/ready")

    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"  # no Redis runs in this test
    assert dependencies(answer) == {"database": "ok", "redis": "failing", "worker": "ok", "agent": "ok"}


def test_without_an_agent_it_is_not_ready(anonymous, db):
    assert anonymous.send("GET", "/health/ready").status_code == 503
    readings.write_now(replace(readings.NOTHING_READ, seq=1, taken_at=time.time() - 60, stream="s"))

    answer = anonymous.send("GET", "/health/ready")

    assert answer.status_code == 503
    assert "60 s ago" in answer.json()["dependencies"]["agent"]["detail"]


def test_an_errand_that_nobody_does_shows_a_worker_that_is_gone(anonymous, agent_reads, make_job):
    Outbox.objects.create(
        errand=Errand.SCHEDULE, job=make_job(), created_at=timezone.now() - timedelta(minutes=1)
    )

    assert dependencies(anonymous.send("GET", "/health/ready"))["worker"] == "failing"


def test_f46_a_database_that_does_not_answer_is_said_and_not_shown(anonymous, db, agent_reads):
    asked = []

    def fail(*_: object) -> None:
        asked.append(1)
        raise OperationalError("could not connect to host 10.0.0.7")

    with connection.execute_wrapper(fail):
        answer = anonymous.send("GET", "/health/ready")

    assert answer.status_code == 503
    assert dependencies(answer)["database"] == dependencies(answer)["worker"] == "failing"
    assert len(asked) == 1, "each question may take ten seconds"
    assert b"10.0.0.7" not in answer.content
