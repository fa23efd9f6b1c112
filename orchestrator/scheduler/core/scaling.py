"""How many devices a job gets that leaves the number to the scheduler, and when a running job grows or shrinks.

The devices that no waiting job needs go one by one to the job whose speed they raise most (Optimus, EuroSys'18), as
long as its devices are used well enough.  A running job changes its number by a stop with a checkpoint and a new
start, if that saves several times what the restart costs.  Nothing is remembered between passes: a job that is killed
or loses a device while it changes its number waits, and gets the number that is best then.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Protocol

from orchestrator.scheduler.core.decisions import Decisions, Resize
from orchestrator.scheduler.core.ends import remaining_s
from orchestrator.scheduler.core.quota import Quotas
from orchestrator.scheduler.core.ranking import restart_cost_s
from orchestrator.scheduler.core.room import allows
from orchestrator.scheduler.core.types import (
    ANYWHERE,
    OVER_NODES,
    WHOLE_GPUS,
    Device,
    Policy,
    QueuedJob,
    RunningJob,
    Scaling,
    State,
)

_EPS = 1e-9


class Serve(Protocol):
    """A scheduler for jobs of fixed numbers of devices."""

    def __call__(self, state: State, policy: Policy, *, tell: bool = True) -> Decisions: ...


def learn_serial(rates: Iterable[tuple[int, float]]) -> float | None:
    """The serial share that steps/s on several numbers of devices show; None from one number alone."""
    by_count: dict[int, list[float]] = {}
    for count, rate in rates:
        if count > 0 and rate > 0:
            by_count.setdefault(count, []).append(rate)
    if len(by_count) < 2:
        return None
    low, high = min(by_count), max(by_count)
    faster = median(by_count[high]) / median(by_count[low])
    gap = faster * (high - 1) - high / low * (low - 1)
    return 1.0 if gap <= _EPS else min(1.0, max(0.0, (high / low - faster) / gap))


def serve_sized(
    serve: Serve,
    state: State,
    policy: Policy,
    *,
    tell: bool = True,
    booked: Mapping[str, frozenset[str]] = {},
) -> Decisions:
    """Serve a state in which some jobs leave their number of devices to the scheduler.

    A job is never made to wait by a larger number: unless all enlarged jobs start, all get their least.
    """
    if not any(job.scaling for job in (*state.queued, *state.running)):
        return serve(state, policy, tell=tell)
    counts = _counts(state, policy)
    decisions = serve(_sized(state, counts), policy, tell=tell)
    enlarged = {job.id for job in state.queued if job.scaling and counts[job.id] > job.scaling.least}
    if not enlarged <= {start.job_id for start in decisions.start}:
        decisions = serve(_sized(state, {}), policy, tell=tell)
    return _resized(state, policy, decisions, booked)


def _sized(state: State, counts: Mapping[str, int]) -> State:
    """The state in which waiting jobs ask for these numbers, by default for their least."""
    return replace(
        state,
        queued=tuple(
            _with_count(job, job.scaling, counts.get(job.id, job.scaling.least)) if job.scaling else job
            for job in state.queued
        ),
    )


def _with_count(job: QueuedJob, scaling: Scaling, count: int) -> QueuedJob:
    where = job.constraints
    if where in (ANYWHERE, WHOLE_GPUS, OVER_NODES):
        several = OVER_NODES if where.spans else WHOLE_GPUS
        where = ANYWHERE if count == 1 else several
    elif count > 1:
        where = replace(where, slices=False)
    # A step takes longer or shorter than on the devices of the last attempt.
    step_s = None if job.step_s is None else job.step_s * scaling.speed(job.gpus) / scaling.speed(count)
    return replace(job, gpus=count, constraints=where, step_s=step_s)


def most_useful(scaling: Scaling, policy: Policy) -> int:
    """The largest number whose devices are used well enough; at least the job's own least."""
    if scaling.serial <= _EPS:
        return scaling.most
    enough = int(1 + (1 / policy.least_efficiency - 1) / scaling.serial + _EPS)
    return max(scaling.least, min(scaling.most, enough))


def _counts(state: State, policy: Policy) -> dict[str, int]:
    """The number of devices of each waiting job that leaves it to the scheduler."""
    counts = {job.id: job.scaling.least for job in state.queued if job.scaling}
    quotas = Quotas(state.usage, state.running, state.pool_limits)
    kept = {id_ for hold in state.retry_holds for id_ in hold.device_ids}
    for pool in sorted({job.pool for job in state.queued if job.scaling}):
        ready = sorted(_ready(state, pool, quotas), key=lambda job: (-job.priority, job.submitted, job.id))
        idle = [device for device in _idle(state, pool, policy) if device.id not in kept]
        spare = len(idle) - sum(counts.get(job.id, job.gpus) for job in ready)
        sized = [job for job in ready if job.scaling and job.memory_bytes is None]
        for place, job in enumerate(sized):
            if job.scaling is None or spare <= 0:
                break
            usable = Counter(device.node for device in idle if allows(job.constraints, device))
            room = min(max(usable.values(), default=0), _allowance(quotas, job))
            part = -(-spare // (len(sized) - place))  # each gets an even part of what is spare
            most = min(most_useful(job.scaling, policy), room, counts[job.id] + part)
            count = max(counts[job.id], job.scaling.fitting(most))
            spare -= count - counts[job.id]
            counts[job.id] = count
    return counts


def _ready(state: State, pool: str, quotas: Quotas) -> Iterator[QueuedJob]:
    """The waiting jobs that only a lack of devices can keep from starting."""
    for job in state.queued:
        waits = job.waits_for or (job.not_before is not None and job.not_before > state.now)
        if job.pool == pool and not waits and job.has_all_it_needs:
            least = job if job.scaling is None else replace(job, gpus=job.scaling.least)
            if quotas.barrier(least) is None:
                yield least


def _allowance(quotas: Quotas, job: QueuedJob | RunningJob, held: int = 0) -> int:
    """The devices that limits of people and agents allow a job that holds ``held`` of them."""
    limits = [inf]
    if job.needs_gpu and (limit := quotas.limits.get(job.owner)) and limit.max_devices is not None:
        limits.append(limit.max_devices - quotas.devices[job.owner])
    if (there := quotas.pool_limits.get((job.owner, job.pool))) and there.max_devices is not None:
        limits.append(there.max_devices - quotas.pool_devices[job.owner, job.pool])
    if job.agent_width is not None:
        limits.append(job.agent_width - quotas.agents[job.agent])
    return int(min(min(limits) + held, 2**31))


def _idle(state: State, pool: str, policy: Policy, started: Collection[str] = ()) -> list[Device]:
    """The whole devices of a pool that no job holds."""
    if any(problem.pool == pool for problem in state.problems):
        return []
    held = {share.device_id for job in state.running for share in job.shares} | set(started)
    parents = {device.mig_parent for device in state.devices}
    return [
        device
        for device in state.devices
        if device.pool == pool
        and device.offered
        and device.others_bytes <= policy.foreign_allowed_bytes
        and device.mig_parent is None
        and device.id not in held | parents
    ]


def _resized(
    state: State, policy: Policy, decisions: Decisions, booked: Mapping[str, frozenset[str]]
) -> Decisions:
    resizes, wakes = [], []
    quotas = Quotas(state.usage, state.running, state.pool_limits)
    stopped = {one.job_id for one in decisions.preempt} | {job.id for job in state.running if job.stopping}
    moving = {job.pool for job in state.running if job.id in stopped}
    started = {start.job_id: [share.device_id for share in start.devices] for start in decisions.start}
    for pool in sorted({job.pool for job in state.running if job.scaling} - moving):
        elastic = list(_elastic(state, pool))
        wakes += [job.started + policy.resize_pause_s for job, _ in elastic]
        able = [
            (job, scaling)
            for job, scaling in elastic
            if state.now - job.started >= policy.resize_pause_s - _EPS
            and _would_start_again(job, state, policy, quotas, booked)
        ]
        idle = _idle(state, pool, policy, [id_ for ids in started.values() for id_ in ids])
        waiting = [job for job in _ready(state, pool, quotas) if job.id not in started]
        if waiting:
            resize = _shrink(waiting, able, idle, policy)
        else:
            resize = _grow(able, idle, state, policy, quotas, booked)
        resizes += [resize] if resize else []
    later = [wake for wake in wakes if wake > state.now]
    return replace(
        decisions,
        resize=tuple(resizes),
        next_wake=min([*later, *([decisions.next_wake] if decisions.next_wake else [])], default=None),
    )


def _elastic(state: State, pool: str) -> Iterator[tuple[RunningJob, Scaling]]:
    """The running jobs of a pool that can change their number of devices."""
    for job in state.running:
        scaling = job.scaling
        if job.pool == pool and scaling and scaling.elastic and not job.stopping and job.memory_bytes is None:
            yield job, scaling


def _would_start_again(
    job: RunningJob, state: State, policy: Policy, quotas: Quotas, booked: Mapping[str, frozenset[str]]
) -> bool:
    """Whether no limit and no booking would keep a job from its own devices once it has left them."""
    for limit in (quotas.limits.get(job.owner), quotas.pool_limits.get((job.owner, job.pool))):
        if limit and limit.max_week_gpu_s is not None and limit.week_gpu_s >= limit.max_week_gpu_s:
            return False
    closed = _booked_for_others(job, state, policy, booked)
    offered = {device.id for device in state.devices if device.offered} - closed
    return all(share.device_id in offered for share in job.shares)


def _grow(
    able: Sequence[tuple[RunningJob, Scaling]],
    idle: Sequence[Device],
    state: State,
    policy: Policy,
    quotas: Quotas,
    booked: Mapping[str, frozenset[str]],
) -> Resize | None:
    """The job that gains most by idle devices; each gets an even part of them."""
    options = []
    kept = {id_ for hold in state.retry_holds for id_ in hold.device_ids}
    for job, scaling in able:
        held = len(job.shares)
        closed = kept | _booked_for_others(job, state, policy, booked)
        nodes = {device.id: device.node for device in state.devices}
        own = Counter(nodes.get(share.device_id) for share in job.shares)
        free = Counter(d.node for d in idle if d.id not in closed and allows(job.constraints, d))
        room = max((count + own[node] for node, count in free.items()), default=0)
        part = held + -(-free.total() // len(able))
        after = scaling.fitting(min(most_useful(scaling, policy), room, part, _allowance(quotas, job, held)))
        if after > held:
            left_s = _left_s(job)
            saves_s = left_s * (1 - scaling.speed(held) / scaling.speed(after)) - _cost_s(job, policy)
            resize = Resize(job.id, held, after, saves_s, remaining_s(job))
            options.append((saves_s, job.id, resize, (policy.resize_gain - 1) * _cost_s(job, policy)))
    if not options:
        return None
    _, _, resize, least_s = max(options)
    return resize if resize.saves_s > least_s else None


def _booked_for_others(
    job: RunningJob, state: State, policy: Policy, booked: Mapping[str, frozenset[str]]
) -> set[str]:
    return {
        id_
        for booking in state.bookings
        if job.owner not in booking.owners and booking.start - state.now <= policy.booking_notice_s
        for id_ in booked.get(booking.id, ())
    }


def _shrink(
    waiting: Sequence[QueuedJob],
    able: Sequence[tuple[RunningJob, Scaling]],
    idle: Sequence[Device],
    policy: Policy,
) -> Resize | None:
    """The job that loses least by giving devices to the first waiting job that they suffice for."""
    for job in sorted(waiting, key=lambda one: (-one.priority, one.gpus, one.submitted, one.id)):
        free = sum(allows(job.constraints, device) for device in idle)
        options = []
        for other, scaling in able:
            held = len(other.shares)
            after = scaling.fitting(most := held - max(1, job.gpus - free))
            if after > most or other.priority > job.priority:
                continue
            left_s, cost_s = _left_s(other), _cost_s(other, policy)
            loses_s = left_s * (scaling.speed(held) / scaling.speed(after) - 1) + cost_s
            # The waiting job would otherwise wait for this one's end.
            if left_s - loses_s > policy.resize_gain * cost_s:
                resize = Resize(other.id, held, after, -loses_s, remaining_s(other), job.id)
                options.append((loses_s, other.id, resize))
        if options:
            return min(options)[2]
    return None


def _left_s(job: RunningJob) -> float:
    """The expected remaining time; a job that reports nothing is expected to run as long again."""
    left_s = remaining_s(job)
    return job.ran_s if left_s is None else left_s


def _cost_s(job: RunningJob, policy: Policy) -> float:
    return restart_cost_s(job, policy) + (job.checkpoint_age_s or 0.0)
