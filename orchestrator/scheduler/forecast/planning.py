"""When and where a job would run if it were submitted now; saves nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone

from berth.shared import words
from berth.shared.language import text
from orchestrator.jobs import memory_claims
from orchestrator.jobs.submission import intake
from orchestrator.models import Device, Job, JobState
from orchestrator.scheduler import core, passes
from orchestrator.scheduler.forecast import device_counts, whatif
from orchestrator.scheduler.forecast.training_preview import TrainingPreview
from orchestrator.sentences.waits import say_wait
from orchestrator.spec.job_spec import JobSpec

ESTIMATED = 5000  # waiting jobs of a pool that get a start estimate on request
_ESTIMATING = replace(passes.POLICY, predicted_jobs=ESTIMATED)
TrainingPlanner = Callable[[AbstractBaseUser, JobSpec, Job], TrainingPreview | None]
_training_planners: list[TrainingPlanner] = []


def register_training_planner(planner: TrainingPlanner) -> None:
    """Add a planner that says how a job would train: strategies, memory, step time; None if it does not know.

    It is called with the user, the spec and the unsaved job; the first answer that is not None is used.
    """
    if planner not in _training_planners:
        _training_planners.append(planner)


@dataclass(frozen=True, slots=True)
class SubmitPreview:
    """What submitting a job would lead to."""

    job: Job  # unsaved
    made_at: datetime  # the time that the sentence and all ranges count from
    starts_now: bool
    code: str  # why it waits; empty if it starts
    facts: core.Facts  # what the sentence is made of, while it waits
    sentence: str
    devices: tuple[tuple[Device, int | None], ...]  # by rank, with the claimed bytes; empty: unknown
    stops: tuple[str, ...]  # ids of jobs that would be stopped for it
    blocked_by: tuple[str, ...]
    ahead: int
    start_earliest: datetime | None
    start_latest: datetime | None
    memory: memory_claims.MemoryClaim
    search: whatif.Search  # for changes that would start it now
    training: TrainingPreview | None
    outcomes: tuple[device_counts.DeviceCountOption, ...]  # first with the requested number of devices

    @property
    def as_asked(self) -> device_counts.DeviceCountOption | None:
        return next((option for option in self.outcomes if option.gpus == self.job.gpus), None)


def plan(user: AbstractBaseUser, spec: JobSpec) -> SubmitPreview:
    """Ask the scheduler as if the job were there.

    Raises:
        Impossible, Forbidden, TooMany: submitting this would be refused.
    """
    job = intake.draft(user, spec)
    passes.fit_to_pools([job])
    now = timezone.now()
    state = passes.look(now, drafts=[job])
    rivals = tuple(one for one in state.queued if one.pool == job.pool_id)
    among = replace(state, queued=rivals)
    decisions = core.decide(among, _ESTIMATING)
    starts_now = any(start.job_id == str(job.pk) for start in decisions.start)
    return _plan(
        job,
        decisions,
        now,
        search=whatif.Search() if starts_now else whatif.search(state, job, user),
        training=next((answer for ask in _training_planners if (answer := ask(user, spec, job))), None),
        outcomes=device_counts.outcomes(job, among, decisions, _ESTIMATING),
    )


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected start of a waiting job; empty for other jobs."""

    start_earliest: datetime | None = None
    start_latest: datetime | None = None
    search: whatif.Search = field(default_factory=whatif.Search)  # for changes that would start it now


def look_ahead(job: Job, viewer: AbstractBaseUser) -> Outlook:
    """The start estimate of a queued job and the changes that would start it now.

    Passes estimate the starts of the first few jobs only; for others the estimate is made here.
    """
    if job.state != JobState.QUEUED:
        return Outlook()
    state = passes.look(timezone.now())
    search = whatif.search(state, job, viewer)
    if job.start_latest is not None:
        return Outlook(search=search)
    rivals = tuple(one for one in state.queued if one.pool == job.pool_id)
    decisions = core.decide(replace(state, queued=rivals), _ESTIMATING)
    wait = next((wait for wait in decisions.wait if wait.job_id == str(job.pk)), None)
    if wait is None:
        return Outlook(search=search)
    return Outlook(_moment(wait.start_earliest), _moment(wait.start_latest), search)


def _plan(
    job: Job,
    decisions: core.Decisions,
    now: datetime,
    *,
    search: whatif.Search,
    training: TrainingPreview | None,
    outcomes: tuple[device_counts.DeviceCountOption, ...],  # first with the requested number of devices
) -> SubmitPreview:
    job_id = str(job.pk)
    start = next((start for start in decisions.start if start.job_id == job_id), None)
    wait = next((wait for wait in decisions.wait if wait.job_id == job_id), None)
    return SubmitPreview(
        job=job,
        made_at=now,
        starts_now=start is not None,
        code="" if wait is None else wait.code,
        facts={} if wait is None else wait.facts,
        sentence=_starts_sentence(job) if wait is None else _say(wait, now),
        devices=_devices(job, decisions),
        stops=tuple(one.job_id for one in decisions.preempt if one.for_job_id == job_id),
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
    """The devices where the job would start, or that would be reserved for it."""
    job_id = str(job.pk)
    starts = [share for start in decisions.start if start.job_id == job_id for share in start.devices]
    reserved = [id_ for one in decisions.reserve if one.job_id == job_id for id_ in one.device_ids]
    ids = [share.device_id for share in starts] or reserved
    rows = Device.objects.in_bulk(ids)
    return tuple((rows[id_], job.claimed_bytes) for id_ in ids if id_ in rows)


def _starts_sentence(job: Job) -> str:
    return text("It would start at once in pool {pool}.", pool=job.pool_id)


def _say(wait: core.Wait, now: datetime) -> str:
    when = words.start_range(_moment(wait.start_earliest), _moment(wait.start_latest), now)
    return say_wait(wait.code, wait.facts, now_s=now.timestamp(), ahead=wait.position - 1, when=when)


def _moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
