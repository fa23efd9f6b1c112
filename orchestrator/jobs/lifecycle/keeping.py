"""Which jobs keep the devices of an attempt that ended, and for how long."""

import signal
from datetime import datetime, timedelta

from orchestrator.jobs.lifecycle.ending import Ending
from orchestrator.models import ExitKind, Job, JobState, Lease

# What people, service managers and shells send. A crash of the job's own has other signals.
SENT_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
LONGEST_DELAY_S = 30.0  # a device that is idle for longer is given to others
START_WITHIN_S = 30.0  # after the wait; a job that has not started by then keeps nothing


def kept_until(job: Job, ending: Ending, delay_s: float) -> datetime | None:
    """Until when a job that is retried after this delay keeps its devices; None: others may have them."""
    if not was_killed(job, ending) or delay_s > LONGEST_DELAY_S:
        return None
    return ending.at + timedelta(seconds=delay_s + START_WITHIN_S)


def was_killed(job: Job, ending: Ending) -> bool:
    """Whether an attempt that ran was ended by something outside of it, and its devices are not to blame."""
    if job.state == JobState.STARTING and ending.kind == ExitKind.INFRA:
        return False  # it never ran
    if ending.port_taken:
        return False
    if ending.kind in {ExitKind.LOST, ExitKind.INFRA} or ending.crowded_out:
        return True
    if ending.kind != ExitKind.SIGNAL:
        return False
    sent = ending.first_failure.get("signal") if ending.first_failure else None
    return sent is None or sent in SENT_SIGNALS  # without a rank: the process that starts the ranks


def kept_facts(job: Job, until: datetime | None) -> dict[str, list[str] | str]:
    """What the fact of a retry adds: the devices that are kept for it, and until when."""
    if until is None:
        return {}
    labels = [
        lease.device.label
        for lease in Lease.objects.filter(attempt__job=job, attempt__number=job.attempt_count)
        .select_related("device")
        .order_by("device__index", "device_id")
    ]
    return {"kept_devices": list(dict.fromkeys(labels)), "kept_until": until.isoformat()}
