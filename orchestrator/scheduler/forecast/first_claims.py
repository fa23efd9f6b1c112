"""Plans the memory of models that never ran, in a thread of the agent, while their jobs wait for it."""

import logging
from datetime import datetime

from django.utils import timezone

from orchestrator.jobs import memory_claims, planned_memory
from orchestrator.jobs.background import Background
from orchestrator.models import Job, JobState, PlannedMemory, Sharing
from orchestrator.scheduler import passes
from orchestrator.scheduler.forecast import training_preview

logger = logging.getLogger(__name__)

AT_ONCE = 1  # a planner takes seconds of a core
LONGEST_S = 120.0  # longer than a job waits for it: the answer also serves later jobs with the same code
MOST_KEPT = 2000


def sweep(now: datetime) -> None:
    """Begin to plan for waiting jobs whose memory nothing is known of."""
    queued = Job.objects.filter(
        state=JobState.QUEUED, pool__sharing=Sharing.LEARNED, spec_fields__kind="model", attempt_count=0
    )
    if not queued.exists():  # asked every second: to build the whole query would cost five times as much
        return
    jobs = list(queued.select_related("pool", "owner"))
    keys = {job.pk: memory_claims.memory_key(job.spec_fields, job.bundle) for job in jobs}
    for (key, pool), waiting in planned_memory.waiting_for_plans(jobs, keys, now).items():
        row, is_new = PlannedMemory.objects.get_or_create(
            key=key, pool_id=pool, defaults={"job": waiting[0][0], "created_at": now}
        )
        _plans.start(row.pk)
        if is_new:
            _forget_old()


def _forget_old() -> None:
    kept = PlannedMemory.objects.order_by("-pk").values_list("pk", flat=True)[:MOST_KEPT]
    PlannedMemory.objects.exclude(pk__in=list(kept)).delete()


def plan(number: int) -> None:
    """Ask the planner for one row, and have a pass look at its jobs again; a failure leaves them whole devices."""
    row = PlannedMemory.objects.select_related("job__pool", "job__owner").filter(pk=number).first()
    if row is None or row.ended_at is not None:
        return
    job = row.job
    planned_bytes = None
    try:
        answer = (
            training_preview.preview(job.owner, job.spec, job, longest_s=LONGEST_S)
            or training_preview.NO_PREVIEW
        )
        table = next((one for one in answer["devices"] if one["gpus"] == job.gpus), None)
        if answer.get("error"):
            logger.info("The memory of job %s was not planned: %s", job.pk, answer["error"])
        if table and table["chosen"] and table["chosen"]["memory_bytes"]:
            planned_bytes = round(table["chosen"]["memory_bytes"])
    except Exception:
        logger.exception("Planning the memory of job %s failed", job.pk)
    PlannedMemory.objects.filter(pk=number).update(memory_bytes=planned_bytes, ended_at=timezone.now())
    passes.run_pass()


_plans = Background("planned memory", plan, at_once=AT_ONCE)
