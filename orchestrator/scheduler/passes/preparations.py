"""How far the code, the packages, the data and the plans of waiting jobs are."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db.models.fields.json import KT

from orchestrator.jobs import memory_claims, planned_memory
from orchestrator.models import (
    Checkout,
    CheckoutState,
    Environment,
    EnvironmentState,
    Fetch,
    FetchState,
    Job,
    JobState,
)
from orchestrator.scheduler import core
from orchestrator.spec.remote_data import without_query


def environments_in_making(jobs: Iterable[Job]) -> Mapping[int | None, core.Facts]:
    """The environments of these jobs that are not ready, with what a sentence tells of them.

    Jobs of one environment share its facts.
    """
    numbers = {job.environment_id for job in jobs if job.environment_id is not None}
    if not numbers:
        return {}
    rows = Environment.objects.filter(pk__in=numbers).exclude(state=EnvironmentState.READY)
    named = rows.annotate(of_image=KT("request__image"))  # a whole request may be megabytes
    return {row.pk: _facts(row, row.of_image or "") for row in named.defer("request", "lock")}


def _facts(row: Environment, image: str) -> core.Facts:
    """The time of its begin, not its age: the row of a waiting job must not change with every second."""
    facts: core.Facts = {"origin": row.origin, **({"packages": len(row.packages)} if row.packages else {})}
    if image:
        facts = {"origin": image, "image": True}
    if row.next_try_at is not None:
        return {**facts, "why": row.why, "next_try_s": row.next_try_at.timestamp()}
    if row.state == EnvironmentState.BUILDING and row.started_at is not None:
        return {**facts, "since_s": row.started_at.timestamp()}
    return facts


def code_in_making(jobs: Iterable[Job]) -> Mapping[int | None, core.Facts]:
    """The checkouts whose code these jobs do not have yet, with what a sentence tells of them."""
    numbers = {job.checkout_id for job in jobs if job.checkout_id is not None and not job.bundle}
    return {row.pk: _facts_of_code(row) for row in Checkout.objects.filter(pk__in=numbers)} if numbers else {}


def _facts_of_code(row: Checkout) -> core.Facts:
    facts: core.Facts = {"url": row.url, "ref": row.ref}
    if row.next_try_at is not None:
        return {**facts, "why": row.why, "next_try_s": row.next_try_at.timestamp()}
    if row.state == CheckoutState.FETCHING and row.started_at is not None:
        return {**facts, "since_s": row.started_at.timestamp()}
    return facts


def data_on_its_way() -> Mapping[str, core.Facts]:
    """The queued jobs whose data is not all there, with what a sentence tells of the first that is not."""
    links = Job.fetches.through.objects.filter(job__state=JobState.QUEUED)
    pairs = list(
        links.exclude(fetch__state=FetchState.READY).order_by("-fetch_id").values_list("job_id", "fetch_id")
    )
    if not pairs:
        return {}
    rows = Fetch.objects.in_bulk({number for _, number in pairs})
    facts = {number: _fetch_facts(row) for number, row in rows.items()}
    return {str(job_id): facts[number] for job_id, number in pairs if number in facts}


def plans_in_making(jobs: Iterable[Job], now: datetime) -> set[str]:
    """The queued models that wait until the planner has said what memory they need."""
    jobs = [job for job in jobs if job.state == JobState.QUEUED and planned_memory.is_planned(job)]
    if not jobs:
        return set()
    keys = {job.pk: memory_claims.memory_key(job.spec_fields, job.bundle) for job in jobs}
    waiting = planned_memory.waiting_for_plans(jobs, keys, now).values()
    return {str(job.pk) for pairs in waiting for job, _ in pairs}


def _fetch_facts(row: Fetch) -> core.Facts:
    facts: core.Facts = {"address": without_query(row.address), "done_bytes": row.done_bytes}
    if row.total_bytes is not None:
        facts = {**facts, "total_bytes": row.total_bytes}
    if row.next_try_at is not None:
        return {**facts, "why": row.why, "next_try_s": row.next_try_at.timestamp()}
    return {**facts, "began": True} if row.state == FetchState.FETCHING else facts
