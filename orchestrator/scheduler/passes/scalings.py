"""How the speed of jobs follows their number of devices, for those that leave the number to the scheduler."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.facts.events import Happened
from orchestrator.jobs.numbers_of_devices import (
    failed_on_another_number,
    goes_back_to,
    resumed_on_another_number,
)
from orchestrator.jobs.training_plans import parse_plan
from orchestrator.models import Attempt, Job, JobEvent
from orchestrator.scheduler import core

MOST_READ = 200  # runs of the same code
_Rates = Sequence[tuple[int, float]]


def scalings(jobs: Iterable[Job]) -> dict[str, core.Scaling]:
    """The scaling of each job that names ``max_gpus``, by job id."""
    ranges = [job for job in jobs if job.spec_fields.get("max_gpus")]
    return {str(job.pk): _scaling(job) for job in ranges}


def _scaling(job: Job) -> core.Scaling:
    spec = job.spec_fields
    is_model = spec.get("kind") == "model"
    kept = goes_back_to(job)
    resumes = (is_model or resumed_on_another_number(job.bundle)) and not failed_on_another_number(job.bundle)
    scaling = core.Scaling(
        kept or spec.get("min_gpus") or spec["gpus"],
        kept or spec["max_gpus"],
        elastic=bool(spec.get("elastic", True)) and resumes,
        batch=_batch(job) if is_model else None,
    )
    serial = core.learn_serial((*_own_rates(job), *_rates_of_code(job)))
    return scaling if serial is None else replace(scaling, serial=serial, measured=True)


def _rates_of_code(job: Job) -> _Rates:
    """Steps/s of other jobs with the same code and arguments."""
    if not job.bundle:
        return ()
    rows = Job.objects.filter(
        bundle=job.bundle, spec_fields__args=job.spec_fields["args"], steps_per_s__gt=0
    ).exclude(pk=job.pk)
    newest = rows.order_by("-pk").values_list("gpus", "steps_per_s")[:MOST_READ]
    return [(gpus, rate) for gpus, rate in newest if rate]


def _own_rates(job: Job) -> _Rates:
    """Steps/s of the job on this number of devices, and on those that it had before."""
    now = [(job.gpus, job.steps_per_s)] if job.steps_per_s else []
    told = JobEvent.objects.filter(job_id=job.pk, kind=Happened.RESIZED).values_list("data", flat=True)
    return [*now, *((each["before"], each["steps_per_s"]) for each in told if each.get("steps_per_s"))]


def _batch(job: Job) -> int | None:
    """The effective batch of a model's last plan, which stays the same on other numbers of devices."""
    last = Attempt.objects.filter(job_id=job.pk).order_by("-number").first()
    plan = parse_plan(last.plan.get("plan")) if last else None
    return plan.samples_per_step if plan else None
