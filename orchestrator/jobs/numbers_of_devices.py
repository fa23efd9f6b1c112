"""Whether code resumes on another number of devices than the one that its checkpoint comes from."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from django.db.models import Count

from orchestrator.facts.events import Happened
from orchestrator.models import Attempt, Job, JobEvent

MOST_READ = 200  # attempts of the same code


def number_before(job: Job) -> int | None:
    """The number of devices of the attempt before, if the present one resumed on another and took no step; else None."""
    if not job.spec_fields.get("max_gpus"):
        return None
    last = Attempt.objects.filter(job=job, number__in=[job.attempt_count, job.attempt_count - 1])
    attempts = list(last.order_by("-number"))
    if len(attempts) < 2:
        return None
    now, before = attempts
    if not now.resumed_from or now.first_step_at is not None or before.first_step_at is None:
        return None
    count = before.leases.count()
    return None if now.leases.count() == count else count


def resumed_on_another_number(bundle: str) -> bool:
    """Whether a run of this code resumed from a checkpoint of another number of devices."""
    if not bundle:
        return False
    rows = Attempt.objects.filter(job__bundle=bundle).annotate(devices=Count("leases"))
    runs: Mapping[str, list[tuple[int, bool]]] = defaultdict(list)
    newest = rows.order_by("-job", "number").values_list("job", "devices", "resumed_from", "first_step_at")
    for job_id, devices, resumed_from, first_step_at in newest[:MOST_READ]:
        runs[str(job_id)].append((devices, bool(resumed_from) and first_step_at is not None))
    return any(
        later[1] and earlier[0] != later[0]
        for attempts in runs.values()
        for earlier, later in pairwise(attempts)
    )


def failed_on_another_number(bundle: str) -> bool:
    """Whether a run of this code resumed on another number of devices, and ended with an error of its own."""
    if not bundle:
        return False
    rows = JobEvent.objects.filter(kind=Happened.RETRIED, data__has_key="back_to", job__bundle=bundle)
    return rows.exists()


def goes_back_to(job: Job) -> int | None:
    """The number of devices that a job keeps since it failed on another one; None: it did not."""
    rows = JobEvent.objects.filter(kind=Happened.RETRIED, data__has_key="back_to", job_id=job.pk)
    told = rows.order_by("-number").values_list("data", flat=True).first()
    return None if told is None else int(told["back_to"])
