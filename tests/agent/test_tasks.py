"""The tasks of a worker: what they share, and what an outage leaves behind."""

from collections.abc import Callable
from uuid import uuid4

import pytest
from celery.fixups.django import DjangoWorkerFixup  # type: ignore[attr-defined]  # the stubs lack it
from celery.signals import task_prerun
from django.db import connection

from orchestrator.agent import tasks
from orchestrator.live.broker import app

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run_task(home, monkeypatch) -> Callable[[], object]:
    """Run a task with what Celery's worker does before and after; returns the connection that it used."""
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)
    worker = DjangoWorkerFixup(app)
    tasks.keep_connection()
    connection.close()

    def run() -> object:
        worker.on_task_prerun(tasks.launch)
        task_prerun.send(sender=tasks.launch)
        tasks.launch(str(uuid4()), 1)
        used = connection.connection
        worker.on_task_postrun(tasks.launch)
        return used

    return run


def test_tasks_of_one_process_use_one_connection(run_task):
    first = run_task()

    assert run_task() is first


def test_a_connection_that_is_too_old_is_replaced_before_the_next_task(run_task):
    first = run_task()
    connection.close_at = 0.0

    assert run_task() is not first


def test_a_connection_that_broke_is_replaced_before_the_next_task(run_task, monkeypatch):
    first = run_task()
    connection.errors_occurred = True
    with monkeypatch.context() as broken:
        broken.setattr(connection, "is_usable", lambda: False)

        assert run_task() is not first
