"""When a job of one device would start, by its time limit: short jobs often start where long ones wait."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.contrib.auth.models import User

from orchestrator.models import Device, Job, JobState, Pool
from orchestrator.scheduler import core, passes

LIMITS_S = (600.0, 2_400.0, 7_200.0, 21_600.0, 86_400.0)
MOST_WAITING = 1_000  # with more waiting jobs one answer takes too long for a page that many people keep open
LONGEST_S = 0.1  # of CPU time; remaining limits are skipped
_ESTIMATING = replace(passes.POLICY, predicted_jobs=MOST_WAITING + 1)


@dataclass(frozen=True, slots=True)
class Step:
    """A job with this time limit that is submitted now."""

    time_limit_s: float
    starts_now: bool
    start_earliest: datetime | None  # None: unknown
    start_latest: datetime | None
    stops: int  # jobs that are paused for it


@dataclass(frozen=True, slots=True)
class PoolSteps:
    """What a pool offers a job of one device, shortest time limit first."""

    pool: str
    steps: Sequence[Step]

    @property
    def all_start(self) -> bool:
        return all(step.starts_now for step in self.steps)


def read_steps(user: User, pools: Iterable[Pool], now: datetime) -> list[PoolSteps]:
    """Ask the scheduler for each pool and time limit, as if this person submitted a job of one device now."""
    if Job.objects.filter(state=JobState.QUEUED).count() > MOST_WAITING:
        return []
    kinds = defaultdict(set)
    for pool_id, kind in Device.objects.values_list("pool", "kind"):
        kinds[pool_id].add(kind)
    probes = [_probe(user, pool, kinds[pool.pk], now) for pool in pools if kinds[pool.pk]]
    if not probes:
        return []
    state = passes.look(now, drafts=probes)
    deadline = time.thread_time() + LONGEST_S
    found = [PoolSteps(probe.pool_id, list(_steps(state, probe, deadline))) for probe in probes]
    return [each for each in found if each.steps]


def _probe(user: User, pool: Pool, kinds: Set[str], now: datetime) -> Job:
    spec = {"gpus": 0} if kinds == {"cpu"} else {}
    job = Job(pool_id=pool.pk, name="", gpus=1, spec_fields=spec, submitted_at=now, queued_at=now)
    job.owner = user
    return job


def _steps(state: core.State, probe: Job, deadline: float) -> Iterator[Step]:
    job_id = str(probe.pk)
    asked = next(job for job in state.queued if job.id == job_id)
    others = tuple(job for job in state.queued if job.pool == probe.pool_id and job.id != job_id)
    for limit_s in LIMITS_S:
        if time.thread_time() > deadline:
            return
        queued = (*others, replace(asked, time_limit_s=limit_s))
        yield _step(limit_s, job_id, core.decide(replace(state, queued=queued), _ESTIMATING))


def _step(limit_s: float, job_id: str, decisions: core.Decisions) -> Step:
    stops = sum(one.for_job_id == job_id for one in decisions.preempt)
    wait = next((wait for wait in decisions.wait if wait.job_id == job_id), None)
    if wait is None:
        return Step(limit_s, True, None, None, stops)
    return Step(limit_s, False, _moment(wait.start_earliest), _moment(wait.start_latest), stops)


def _moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
