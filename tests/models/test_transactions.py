"""A transaction that the database undid for another's sake is run again, a few times."""

import threading

import pytest
from django.db import OperationalError, close_old_connections, connection, transaction

from orchestrator.exceptions import TooMany
from orchestrator.jobs import lifecycle
from orchestrator.jobs.submission import intake
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import Job, JobEvent, JobState, Quota
from orchestrator.people import quotas
from tests.jobs.invariants import check_invariants
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("home")]
SPEC = {"source": {"text": "print(1)\n"}}


class Undone(Exception):
    """As psycopg says it."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Deadlocks:
    """The database undoes the transaction at the last moment, so many times."""

    def __init__(self, times: int, sqlstate: str) -> None:
        self.left, self.sqlstate = times, sqlstate

    def __call__(self, execute, sql, *rest):
        if self.left and sql.startswith("INSERT") and ("outbox" in sql or "jobevent" in sql):
            self.left -= 1
            raise OperationalError("deadlock detected") from Undone(self.sqlstate)
        return execute(sql, *rest)


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    waited: list[float] = []
    # Not the module ``time``: threads of other tests may still wait in it.
    monkeypatch.setattr("orchestrator.models.transactions.sleep", waited.append)
    return waited


@pytest.mark.code("F45")
@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
def test_submit_that_the_database_rolled_back_three_times_makes_one_job(ada, make_device, pauses, sqlstate):
    make_device()
    with connection.execute_wrapper(Deadlocks(3, sqlstate)):
        accepted = intake.accept(ada, parse_spec(SPEC), idempotency_key="once")

    assert Job.objects.get() == accepted.job
    assert len(pauses) == 3
    assert sum(pauses) < 0.3
    assert len({round(pause / (2**number), 6) for number, pause in enumerate(pauses)}) == 3, "no jitter"
    check_invariants()


@pytest.mark.code("F45")
def test_error_is_raised_after_the_third_retry(ada, make_device, pauses):
    make_device()
    with connection.execute_wrapper(Deadlocks(4, "40P01")), pytest.raises(OperationalError, match="deadlock"):
        intake.accept(ada, parse_spec(SPEC))

    assert not Job.objects.exists()
    assert len(pauses) == 3


@pytest.mark.code("F45")
def test_rolled_back_stop_request_is_written_once(make_job, pauses):
    job = make_job()

    with connection.execute_wrapper(Deadlocks(2, "40P01")):
        lifecycle.cancel(job, by="ada")

    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert JobEvent.objects.filter(job=job, to_state=JobState.CANCELLED).count() == 1
    check_invariants()


@pytest.mark.code("F45")
def test_inner_transaction_is_not_retried_alone(make_job, pauses):
    job = make_job()

    with (
        pytest.raises(OperationalError),
        transaction.atomic(),
        connection.execute_wrapper(Deadlocks(1, "40P01")),
    ):
        lifecycle.cancel(job, by="ada")

    assert pauses == []


def test_other_database_errors_are_not_retried(ada, make_device, pauses):
    make_device()
    with connection.execute_wrapper(Deadlocks(1, "57P01")), pytest.raises(OperationalError):
        intake.accept(ada, parse_spec(SPEC))

    assert pauses == []


@pytest.mark.code("T23")
def test_concurrent_submits_do_not_exceed_the_limit_on_waiting_jobs(ada, make_device, monkeypatch):
    """On PostgreSQL each would else count before the others have written."""
    make_device()
    Quota.objects.create(user=ada, max_queued=3)
    all_ready = threading.Barrier(8)
    refused: list[TooMany] = []

    def submit() -> None:
        all_ready.wait(PATIENCE_S)
        try:
            intake.accept(ada, parse_spec(SPEC))
        except TooMany as error:
            refused.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    close_old_connections()

    assert Job.objects.filter(state=JobState.QUEUED).count() == 3
    assert len(refused) == 5
    assert quotas.standings(ada)[0].queued == 3
