"""Starts and stops that a pass decided, applied to a world that may have moved on since."""

import logging
import secrets
from datetime import datetime

from django.db import IntegrityError, transaction

from orchestrator import lifecycle, scheduling
from orchestrator.lifecycle import IllegalTransition, StaleJob
from orchestrator.models import Device, Job, Lease
from orchestrator.placement.turns import OldTerm, check_term

logger = logging.getLogger(__name__)


def start(term: int, job: Job, decision: scheduling.Start, now: datetime) -> bool:
    """Apply one start; False when the world moved on since the snapshot."""
    ids = [share.device_id for share in decision.devices]
    try:
        with transaction.atomic():
            check_term(term)
            # Locked in id order, so that two passes cannot wait for each other.
            rows = {
                row.id: row for row in Device.objects.select_for_update().filter(pk__in=ids).order_by("id")
            }
            shares = [(rows[share.device_id], share.memory_bytes) for share in decision.devices]
            if not all(_fits(device, share) for device, share in shares):
                return False
            where = ", ".join(device.label for device, _ in shares)
            lifecycle.start(job, shares, nonce=secrets.token_hex(16), reason=f"Starts on {where}.", now=now)
    except (StaleJob, IllegalTransition, IntegrityError, OldTerm, KeyError):
        logger.info("Job %s was not started: something changed since the pass began.", job.pk)
        return False
    return True


def _fits(device: Device, share: int | None) -> bool:
    """Whether a device can take this claim beside the leases it has now (I3)."""
    if not device.usable:
        return False
    claims = list(Lease.objects.active().filter(device=device).values_list("memory_bytes", flat=True))
    if share is None:
        return not claims
    held = [claim for claim in claims if claim is not None]
    return len(held) == len(claims) and sum(held) + share <= device.memory_bytes


def preempt(job: Job, other: Job) -> None:
    try:
        lifecycle.preempt(job, by="scheduler", reason=f"Makes room for {other} of {other.owner}.")
    except IllegalTransition:
        logger.info("Job %s was not preempted: it is %s.", job.pk, job.state)
