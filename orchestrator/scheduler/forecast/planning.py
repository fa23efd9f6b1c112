"""When and where a job would run if it were submitted now; nothing is kept."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone

from orchestrator.jobs import memory_claims
from orchestrator.jobs.submission import intake
from orchestrator.models import Device, Job, JobState
from orchestrator.scheduler import core, passes
from orchestrator.scheduler.forecast import device_counts, whatif
from orchestrator.spec.job_spec import JobSpec

FORESEEN = 5000  # waiting jobs of a pool that a range is worked out for, when somebody asks
_FORESEEING = replace(passes.POLICY, predicted_jobs=FORESEEN)
TrainingPlanner = Callable[[AbstractBaseUser, JobSpec, Job], dict[str, Any] | None]
_training_planners: list[TrainingPlanner] = []


def register_training_planner(planner: TrainingPlanner) -> None:
    """Have a plan say how the job would train: strategies, memory, step time; None where it has no opinion.

    Called with who asks, what they ask for, and the unsaved job; the first answer that is not None is shown.
    """
    if planner not in _training_planners:
        _training_planners.append(planner)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a submit would lead to."""

    job: Job  # unsaved
    made_at: datetime  # what the sentence counts from, and every other range has to
    starts_now: bool
    code: str  # why it waits; empty where it starts
    sentence: str
    devices: tuple[tuple[Device, int | None], ...]  # by rank, with the bytes claimed; empty: not known yet
    stops: tuple[str, ...]  # ids of jobs that would be stopped for it
    blocked_by: tuple[str, ...]
    ahead: int
    start_earliest: datetime | None
    start_latest: datetime | None
    memory: memory_claims.MemoryClaim
    search: whatif.Search  # for what would start it now
    training: dict[str, Any] | None
    outcomes: tuple[device_counts.Outcome, ...]  # with so many devices as asked for, first, and with others

    @property
    def as_asked(self) -> device_counts.Outcome | None:
        return next((each for each in self.outcomes if each.gpus == self.job.gpus), None)


def plan(user: AbstractBaseUser, spec: JobSpec) -> Plan:
    """Ask the scheduler as if the job were there.

    Raises:
        Impossible, Forbidden, TooMany: a submit of it would be refused.
    """
    job = intake.draft(user, spec)
    passes.fit_to_pools([job])
    now = timezone.now()
    state = passes.look(now, drafts=[job])
    rivals = tuple(each for each in state.queued if each.pool == job.pool_id)
    among = replace(state, queued=rivals)
    decisions = core.decide(among, _FORESEEING)
    starts_now = any(each.job_id == str(job.pk) for each in decisions.start)
    return _plan(
        job,
        decisions,
        now,
        search=whatif.Search() if starts_now else whatif.search(state, job, user),
        training=next((said for ask in _training_planners if (said := ask(user, spec, job))), None),
        outcomes=device_counts.outcomes(job, among, decisions, _FORESEEING),
    )


@dataclass(frozen=True, slots=True)
class Outlook:
    """What lies ahead of a job that waits; of one that does not, nothing."""

    start_earliest: datetime | None = None
    start_latest: datetime | None = None
    search: whatif.Search = field(default_factory=whatif.Search)  # for what would start it now


def look_ahead(job: Job, viewer: AbstractBaseUser) -> Outlook:
    """The start range of a queued job however far back it is, where its row has none, and what would start it now.

    Passes work ranges out for the first few only.
    """
    if job.state != JobState.QUEUED:
        return Outlook()
    state = passes.look(timezone.now())
    search = whatif.search(state, job, viewer)
    if job.start_latest is not None:
        return Outlook(search=search)
    rivals = tuple(each for each in state.queued if each.pool == job.pool_id)
    decisions = core.decide(replace(state, queued=rivals), _FORESEEING)
    found = next((each for each in decisions.wait if each.job_id == str(job.pk)), None)
    if found is None:
        return Outlook(search=search)
    return Outlook(_moment(found.start_earliest), _moment(found.start_latest), search)


def _plan(
    job: Job,
    decisions: core.Decisions,
    now: datetime,
    *,
    search: whatif.Search,
    training: dict[str, Any] | None,
    outcomes: tuple[device_counts.Outcome, ...],
) -> Plan:
    job_id = str(job.pk)
    start = next((each for each in decisions.start if each.job_id == job_id), None)
    wait = next((each for each in decisions.wait if each.job_id == job_id), None)
    return Plan(
        job=job,
        made_at=now,
        starts_now=start is not None,
        code="" if wait is None else wait.code,
        sentence=_starts_sentence(job) if wait is None else wait.sentence,
        devices=_devices(job, decisions),
        stops=tuple(each.job_id for each in decisions.preempt if each.for_job_id == job_id),
        blocked_by=() if wait is None else wait.blocked_by,
        ahead=0 if wait is None else wait.position - 1,
        start_earliest=now if wait is None else _moment(wait.start_earliest),
        start_latest=now if wait is None else _moment(wait.start_latest),
        memory=memory_claims.claim_of(job),
        search=search,
        training=training,
        outcomes=outcomes,
    )


def _devices(job: Job, decisions: core.Decisions) -> tuple[tuple[Device, int | None], ...]:
    """Where it would start, or what would be kept for it."""
    job_id = str(job.pk)
    starts = [share for each in decisions.start if each.job_id == job_id for share in each.devices]
    kept = [id_ for each in decisions.reserve if each.job_id == job_id for id_ in each.device_ids]
    ids = [share.device_id for share in starts] or kept
    rows = Device.objects.in_bulk(ids)
    return tuple((rows[id_], job.claimed_bytes) for id_ in ids if id_ in rows)


def _starts_sentence(job: Job) -> str:
    return f"It would start at once in pool {job.pool_id}."


def _moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
