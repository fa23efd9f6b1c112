"""Devices that an operator takes out of use, with reason and end."""

from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.parts import notices
from orchestrator.agent.sweeps import Sweeper
from orchestrator.exceptions import Malformed
from orchestrator.jobs import drains
from orchestrator.models import AdminState, AuditEntry, Device, JobEvent, JobState, Occasion
from orchestrator.people.notices.events import occasion_of

pytestmark = pytest.mark.django_db


def test_a_drain_is_told_to_the_owner_of_the_job_on_the_device(make_attempt, root, ada, home):
    attempt = make_attempt(state=JobState.RUNNING)
    device = attempt.leases.get().device
    until = timezone.now().replace(microsecond=0) + timedelta(hours=2)

    drains.set_state(device, AdminState.DRAINING, by=root, reason="new fan", until=until)

    event = JobEvent.objects.filter(job=attempt.job).latest("number")
    assert event.reason == (
        f"root takes {device.label} out of use: new fan. This job goes on; nothing new starts there. "
        f"It is out of use until {until:%Y-%m-%d %H:%M} UTC."
    )
    assert occasion_of(event) == Occasion.WARNING
    assert notices.notices_of(ada, timezone.now())[0]["why"] == event.reason
    assert notices.notices_of(root, timezone.now()) == []
    said = AuditEntry.objects.get(action="device.state").text
    assert said == f"{device.label}: enabled -> draining. new fan. Until {until:%Y-%m-%d %H:%M} UTC."
    drains.set_state(device, AdminState.DISABLED, by=root, reason="new fan", until=until)
    assert JobEvent.objects.filter(job=attempt.job).latest("number") == event, "told once"


def test_a_drain_ends_by_itself(make_device, root, home):
    now = timezone.now()
    ends, stays = make_device(0), make_device(1)
    drains.set_state(ends, AdminState.DRAINING, by=root, reason="new fan", until=now + timedelta(hours=1))
    drains.set_state(stays, AdminState.DISABLED, by=root)

    Sweeper().sweep(now)
    assert Device.objects.get(pk=ends.pk).admin_state == AdminState.DRAINING
    Sweeper().sweep(now + timedelta(hours=1))

    ends.refresh_from_db()
    assert (ends.admin_state, ends.drain_reason, ends.drain_until) == (AdminState.ENABLED, "", None)
    assert Device.objects.get(pk=stays.pk).admin_state == AdminState.DISABLED
    assert AuditEntry.objects.filter(action="device.state", actor="agent").count() == 1


def test_a_device_in_use_has_no_reason_and_an_end_is_to_come(make_device, root):
    device = make_device(0)
    for state, reason, after in (
        (AdminState.ENABLED, "why", None),
        (AdminState.ENABLED, "", timedelta(hours=1)),
        (AdminState.DRAINING, "", -timedelta(hours=1)),
        (AdminState.DRAINING, "", timedelta(days=400)),
    ):
        until = None if after is None else timezone.now() + after
        with pytest.raises(Malformed):
            drains.set_state(device, state, by=root, reason=reason, until=until)
