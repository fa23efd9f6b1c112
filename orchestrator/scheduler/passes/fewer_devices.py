"""Jobs that continue with fewer devices while their pool has fewer working ones than they ask for."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.models import AdminState, Device, Health, Job, JobState

Nodes = Mapping[str, Sequence[int]]
"""The memory of each working device, by node."""


def fit_to_pools(jobs: Iterable[Job]) -> None:
    """Have queued jobs that name ``min_gpus`` ask for what their pool can give, ``gpus`` at most.

    Devices held by other jobs count, because the job can wait for them.  Each change is recorded in the job's history.
    """
    flexible = [job for job in jobs if job.state == JobState.QUEUED and _names_fewest(job.spec_fields)]
    if not flexible:
        return
    pools = _working_devices({job.pool_id for job in flexible})
    for job in flexible:
        there = _most_on_a_node(pools.get(job.pool_id, {}), job.claimed_bytes or 0)
        count = max(job.spec_fields["min_gpus"], min(job.spec_fields["gpus"], there))
        if count != job.gpus:
            _ask_for(job, count)


def _names_fewest(spec: Mapping[str, Any]) -> bool:
    """Whether the job takes fewer devices if some fail; one with a range takes what the scheduler chooses of it."""
    return bool(spec.get("min_gpus")) and not spec.get("max_gpus")


def _ask_for(job: Job, count: int) -> None:
    wanted, job.gpus = job.spec_fields["gpus"], count
    if not Job.objects.filter(pk=job.pk, state=JobState.QUEUED).update(gpus=count):
        return  # a draft, or it moved on
    what = fact(Happened.ALL_DEVICES, asked=wanted, pool=job.pool_id)
    if count < wanted:
        what = fact(Happened.FEWER_DEVICES, devices=count, asked=wanted, pool=job.pool_id)
    lifecycle.remark(job, what, actor="scheduler")


def _working_devices(pools: set[str]) -> dict[str, Nodes]:
    """The working devices of some pools; fenced ones count, because they return soon."""
    sizes: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    rows = Device.objects.filter(
        pool__in=pools, admin_state=AdminState.ENABLED, health__in=[Health.OK, Health.FENCED]
    )
    for pool, node, size in rows.values_list("pool_id", "node", "memory_bytes"):
        sizes[pool][node].append(size)
    return dict(sizes)


def _most_on_a_node(nodes: Nodes, least_bytes: int) -> int:
    return max((sum(size >= least_bytes for size in sizes) for sizes in nodes.values()), default=0)
