"""Whose fault a lack of GPU memory was: a job's own, or that of processes that are not Berth's (F84)."""

from dataclasses import replace

from berth import words
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.memory_claims import LEAST_MARGIN
from orchestrator.live import readings as live
from orchestrator.models import Attempt, ExitKind, Lease

WORTH_BLAMING = 0.02  # of the device; less than this hardly decides


def blame_others(attempt: Attempt, ending: Ending) -> Ending:
    """An end by lack of GPU memory, with the strangers named that held what the job had claimed.

    Call it while the attempt's leases are active and the newest reading is of its last moments.
    """
    if ending.kind != ExitKind.OOM_GPU or attempt.job.stop_wanted:
        return ending
    readings = live.read_now()
    for lease in Lease.objects.active().filter(attempt=attempt).select_related("device").order_by("rank"):
        entry = readings.device(lease.device_id) or {}
        foreign = int(entry.get("foreign_bytes", 0))
        claim = lease.memory_bytes if lease.memory_bytes is not None else lease.device.memory_bytes
        reached_its_claim = (lease.peak_bytes or 0) >= (1 - LEAST_MARGIN) * claim
        if foreign < WORTH_BLAMING * lease.device.memory_bytes or reached_its_claim:
            continue
        strangers = {
            each.get("user") or "somebody" for each in entry.get("processes", []) if not each.get("job")
        }
        who = " and ".join(sorted(strangers)[:3])
        said = (
            f"{lease.device.label} also held {words.size(foreign)} of {who}, not of Berth's jobs; "
            "without that the job would have had what it claimed."
        )
        return replace(ending, detail=f"{ending.detail} {said}".strip(), crowded_out=True)
    return ending
