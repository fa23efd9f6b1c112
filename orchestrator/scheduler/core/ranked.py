"""The scheduler where jobs are ranked by remaining work and may be stopped for one another."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from orchestrator.scheduler.core.decisions import (
    Decisions,
    Preempt,
    Reserve,
    Start,
    Wait,
)
from orchestrator.scheduler.core.fragmentation import Ask
from orchestrator.scheduler.core.line import answers
from orchestrator.scheduler.core.quota import Quotas
from orchestrator.scheduler.core.ranked_pass import PoolDecisions, RankedPass
from orchestrator.scheduler.core.ranked_prospects import outlook
from orchestrator.scheduler.core.ranking import Ranking, next_change_s
from orchestrator.scheduler.core.room import Room
from orchestrator.scheduler.core.types import (
    Device,
    Policy,
    QueuedJob,
    RunningJob,
    Share,
    State,
)

_SHAPES = 16  # shapes of the recent mix that a placement is scored against


def serve_ranked(state: State, policy: Policy, *, tell: bool = True) -> Decisions:
    plans = _plan_pools(state, policy)
    changes = [change for part, plan in plans.values() for change in _rank_changes(part, plan, policy)]
    return Decisions(
        start=_starts(plans),
        preempt=_preempts(plans),
        reserve=_reserves(plans),
        wait=_waits(state, policy, plans) if tell else (),
        next_wake=min([*state.openings(), *changes], default=None),
    )


def _waits(
    state: State, policy: Policy, plans: Mapping[str, tuple[RankedPass, PoolDecisions]]
) -> tuple[Wait, ...]:
    waiting = [
        (job, code)
        for _, plan in plans.values()
        for job in plan.order
        if (code := plan.codes.get(job.id)) is not None
    ]
    return answers(
        state,
        policy,
        {pool: part for pool, (part, _) in plans.items()},
        waiting,
        prospects={pool: outlook(state, policy, part, plan) for pool, (part, plan) in plans.items()},
        stopping={id_: part.leaving_for(id_) for part, plan in plans.values() for id_ in plan.reserved},
    )


def _plan_pools(state: State, policy: Policy) -> dict[str, tuple[RankedPass, PoolDecisions]]:
    """The passes of all pools with waiting jobs, by pool."""
    devices: dict[str, list[Device]] = defaultdict(list)
    queued: dict[str, list[QueuedJob]] = defaultdict(list)
    running: dict[str, list[RunningJob]] = defaultdict(list)
    groups: Sequence[tuple[dict[str, list[Any]], Sequence[Any]]] = (
        (devices, state.devices),
        (queued, state.queued),
        (running, state.running),
    )
    for group, items in groups:
        for item in items:
            group[item.pool].append(item)
    quotas = Quotas(state.usage, state.running, state.pool_limits)
    reserved = {one.job_id: frozenset(one.device_ids) for one in state.reservations}
    troubled = {problem.pool for problem in state.problems}
    lent = {one.pool: one for one in state.lent}
    plans = {}
    for pool in sorted(queued):
        room = Room(devices[pool], running[pool], policy, state.neighbours)
        mine = sorted(running[pool], key=lambda job: job.id)
        part = RankedPass(
            room,
            reserved,
            {},
            quotas,
            state.now,
            policy,
            problem=pool in troubled,
            lent=lent.get(pool),
            ranking=_ranking(state, policy, devices[pool]),
            running=mine,
            mix=_mix(state, devices[pool]),
        )
        plans[pool] = (part, part.plan(queued[pool]))
    return plans


def _mix(state: State, devices: Sequence[Device]) -> tuple[Ask, ...]:
    """The most common request shapes, in thousandths of the pool's largest device."""
    total = sum(shape.count for shape in state.recent_shapes)
    largest = max((device.total_bytes for device in devices), default=0)
    if not total or not largest:
        return ()
    common = sorted(
        state.recent_shapes,
        key=lambda one: (-one.count, one.gpus, one.memory_bytes is None, one.memory_bytes or 0),
    )
    return tuple(
        Ask(
            shape.gpus,
            1000 if shape.memory_bytes is None else min(1000, shape.memory_bytes * 1000 // largest),
            shape.count / total,
        )
        for shape in common[:_SHAPES]
    )


def _ranking(state: State, policy: Policy, devices: Sequence[Device]) -> Ranking:
    """Rank by time on a single server and by GPU-time on many.

    The larger the gangs are compared with the pool, the more devices an order by GPU-time leaves idle next to a
    small job.
    """
    nodes: dict[str, int] = defaultdict(int)
    for device in devices:
        nodes[device.node] += 1
    weight = policy.gpu_time_weight
    if weight is None:
        weight = 1.0 - max(nodes.values(), default=0) / max(1, len(devices))
    largest = max((device.total_bytes for device in devices), default=0)
    return Ranking(state, policy, device_bytes=largest, gpu_time_weight=weight)


def _rank_changes(part: RankedPass, plan: PoolDecisions, policy: Policy) -> Iterator[float]:
    """When ranks change by themselves because jobs run or wait long; nothing while no job waits."""
    if not plan.codes:
        return
    staying = [job for job in part.running.values() if not job.stopping and job.id not in plan.victims]
    for job in (*part.begun, *staying):
        after_s = next_change_s(job, policy)
        if after_s is not None:
            yield part.now + after_s
    if part.ranking.next_in_front < inf:
        yield part.ranking.next_in_front


def _starts(plans: Mapping[str, tuple[RankedPass, PoolDecisions]]) -> tuple[Start, ...]:
    return tuple(
        Start(job_id, shares) for _, plan in plans.values() for job_id, shares in plan.starts.items()
    )


def _preempts(plans: Mapping[str, tuple[RankedPass, PoolDecisions]]) -> tuple[Preempt, ...]:
    return tuple(
        Preempt(job_id, for_id, _beyond(part.running[job_id]) if job_id in plan.giving_back else None)
        for part, plan in plans.values()
        for job_id, for_id in sorted(plan.victims.items())
    )


def _beyond(job: RunningJob) -> Share:
    """Where a job holds most beyond its claim."""
    return max(job.shares, key=lambda share: (share.beyond_bytes, share.device_id))


def _reserves(plans: Mapping[str, tuple[RankedPass, PoolDecisions]]) -> tuple[Reserve, ...]:
    """Reservations of the devices that are being cleared, and of each head's slot."""
    reserves = []
    for part, plan in plans.values():
        reserves += [Reserve(job_id, ids) for job_id, ids in sorted(plan.reserved.items())]
        if part.head is not None and part.slot is not None:
            reserves.append(Reserve(part.head.id, part.slot.device_ids, part.slot.shadow))
    return tuple(reserves)
