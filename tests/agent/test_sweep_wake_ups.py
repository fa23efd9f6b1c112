"""The agent wakes the worker for sweeps that have news."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from orchestrator.agent import sweep_wake_ups
from orchestrator.agent.sweep_wake_ups import SweepWakeUps
from orchestrator.models import Job, Sweep, SweepTrial
from orchestrator.sweeps import asking, controller, creation
from tests.sweeps.test_controller import BODY

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sent(monkeypatch) -> list[str]:
    """The sweeps that the worker was asked to advance."""
    asked: list[str] = []
    monkeypatch.setattr(
        "orchestrator.live.wakeups._send_task", lambda name, *arguments, **named: asked.extend(arguments)
    )
    return asked


def test_a_trial_that_reports_wakes_its_sweep_before_the_second_is_over(
    home, ada, make_device, sent, monkeypatch
):
    make_device(0)
    wakes, now = SweepWakeUps(), timezone.now()
    wakes.look_in_time(now)
    assert sent == []  # nothing is at work

    sweep = creation.create(ada, asking.parse(BODY)).sweep
    controller.advance(sweep.pk)
    wakes.look(now)
    sent.clear()
    Job.objects.filter(trial__sweep=sweep).update(metric_seq=3)
    wakes.look_in_time(now)
    assert sent == []  # it has just looked

    monkeypatch.setattr(sweep_wake_ups, "LOOK_EVERY_S", 0.0)
    wakes.look_in_time(now + timedelta(milliseconds=250))
    wakes.look_in_time(now + timedelta(milliseconds=500))
    assert sent == [str(sweep.pk)]


def test_a_report_read_in_this_turn_wakes_its_sweep_in_this_turn(home, ada, make_device, sent, monkeypatch):
    make_device(0)
    monkeypatch.setattr(sweep_wake_ups, "REST_S", 0.0)
    wakes, now = SweepWakeUps(), timezone.now()
    sweep = creation.create(ada, asking.parse(BODY)).sweep
    controller.advance(sweep.pk)
    jobs = Job.objects.filter(trial__sweep=sweep)
    reported = [job.pk for job in jobs]
    sent.clear()
    wakes.look_in_time(now, reported=reported)
    assert sent == []  # nothing is at work that the agent knows of

    wakes.look(now)
    sent.clear()
    jobs.update(metric_seq=3)
    wakes.look_in_time(now + timedelta(milliseconds=100), reported=[uuid4()])
    assert sent == []  # another run's report is no news of this sweep
    wakes.look_in_time(now + timedelta(milliseconds=200), reported=reported)
    assert sent == [str(sweep.pk)]


def test_reports_that_come_often_are_looked_at_together(home, ada, make_device, sent, monkeypatch):
    make_device(0)
    wakes, now = SweepWakeUps(), timezone.now()
    sweep = creation.create(ada, asking.parse(BODY)).sweep
    controller.advance(sweep.pk)
    wakes.look(now)
    sent.clear()
    monkeypatch.setattr(sweep_wake_ups, "REST_S", 3600.0)
    monkeypatch.setattr(sweep_wake_ups, "LOOK_EVERY_S", 3600.0)
    jobs = Job.objects.filter(trial__sweep=sweep)
    for count in (3, 4):
        jobs.update(metric_seq=count)
        wakes.look_in_time(now, reported=[job.pk for job in jobs])
    assert sent == []

    monkeypatch.setattr(sweep_wake_ups, "REST_S", 0.0)
    wakes.look_in_time(now)  # remembers the news
    assert sent == [str(sweep.pk)]


def test_a_sweep_that_nobody_advances_is_helped_however_often_it_has_news(home, ada, make_device, sent):
    make_device(0)
    wakes, now = SweepWakeUps(), timezone.now()
    sweep = creation.create(ada, asking.parse(BODY)).sweep
    controller.advance(sweep.pk)
    now = timezone.now()
    for second in range(1, 8):
        Job.objects.filter(trial__sweep=sweep).update(metric_seq=second)
        wakes.look(now + timedelta(seconds=second))
    assert wakes._helper is not None
    wakes._helper.join(60)

    sweep.refresh_from_db()
    assert sweep.advanced_at is not None
    assert sweep.advanced_at > now


def test_a_sweep_that_cannot_be_advanced_holds_up_no_other(home, ada, make_device):
    make_device(0)
    broken, whole = (creation.create(ada, asking.parse({**BODY, "name": name})).sweep for name in "ab")
    Sweep.objects.filter(pk=broken.pk).update(space={})  # as a broken disk may leave it

    sweep_wake_ups.advance_all([broken.pk, whole.pk])

    assert [trial.sweep_id for trial in SweepTrial.objects.all()] == [whole.pk]
