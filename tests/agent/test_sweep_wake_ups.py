"""The agent wakes the worker for sweeps that have news."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.agent import sweep_wake_ups
from orchestrator.agent.sweep_wake_ups import SweepWakeUps
from orchestrator.models import Job
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


def test_a_report_read_in_this_turn_wakes_its_sweep_in_this_turn(home, ada, make_device, sent):
    make_device(0)
    wakes, now = SweepWakeUps(), timezone.now()
    wakes.look_in_time(now, has_news=True)
    assert sent == []  # nothing is at work

    sweep = creation.create(ada, asking.parse(BODY)).sweep
    controller.advance(sweep.pk)
    wakes.look(now)
    sent.clear()
    Job.objects.filter(trial__sweep=sweep).update(metric_seq=3)
    wakes.look_in_time(now + timedelta(milliseconds=100), has_news=True)
    assert sent == [str(sweep.pk)]
    wakes.look_in_time(now + timedelta(milliseconds=200), has_news=True)
    assert sent == [str(sweep.pk)]  # another run's report is no news of this sweep
