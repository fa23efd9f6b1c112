"""Devices taken out of use by an operator, with reason and end, and back into it."""

from datetime import datetime, timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import Malformed, Sentence
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.live import wakeups
from orchestrator.models import AdminState, Device, Lease
from orchestrator.people import audit

LONGEST = timedelta(days=366)
BY_ITS_END = "agent"  # the audit's name for who ends a drain whose time has come


def set_state(
    device: Device,
    state: AdminState,
    *,
    by: AbstractBaseUser | str,
    reason: str = "",
    until: datetime | None = None,
    address: str = "",
) -> None:
    """Enable, drain or disable a device, and tell the owners of the jobs that hold it.

    Args:
        reason: for people; only of a device that takes no jobs.
        until: when it is enabled again by itself; None: by hand.

    Raises:
        Malformed: a device in use has no reason and no end; an end is later than now.
    """
    out_of_use = state != AdminState.ENABLED
    _check(out_of_use, reason, until)
    with transaction.atomic():
        before = AdminState(device.admin_state)
        device.admin_state, device.drain_reason = state, reason
        device.drain_until = until
        device.save(update_fields=["admin_state", "drain_reason", "drain_until"])
        details = f" {reason}." if reason else ""
        details += f" Until {until:%Y-%m-%d %H:%M} UTC." if until else ""
        text = f"{device.label}: {before} -> {state}.{details}"
        audit.record(by, "device.state", f"device {device.pk}", text, address=address)
        if out_of_use and before == AdminState.ENABLED:
            _tell_owners(device, by if isinstance(by, str) else by.get_username())
        wakeups.schedule()
        wakeups.publish("devices")


def _check(out_of_use: bool, reason: str, until: datetime | None) -> None:
    if not out_of_use and (reason or until):
        name = "reason" if reason else "until"
        raise _wrong(name, "only a device that is draining or disabled has a reason and an end")
    now = timezone.now()
    if until is not None and not now < until <= now + LONGEST:
        raise _wrong("until", "give a time that is still to come, within a year")


def _tell_owners(device: Device, by: str) -> None:
    leases = Lease.objects.active().filter(device=device).select_related("attempt__job")
    for job in {lease.attempt.job_id: lease.attempt.job for lease in leases}.values():
        until = None if device.drain_until is None else device.drain_until.timestamp()
        what = fact(
            Happened.DEVICE_DRAINED, device=device.label, by=by, reason=device.drain_reason, until_s=until
        )
        lifecycle.remark(job, what, actor=by)


def end_drains(now: datetime) -> None:
    """Enable devices whose drain has reached its end; called every second."""
    for device in Device.objects.exclude(admin_state=AdminState.ENABLED).filter(drain_until__lte=now):
        set_state(device, AdminState.ENABLED, by=BY_ITS_END)


def _wrong(name: str, message: str) -> Malformed:
    return Malformed(Sentence("{name}: {message}.", name=name, message=message), fields={name: [message]})
