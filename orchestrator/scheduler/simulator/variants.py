"""Variants of the policy and the pool under which recorded jobs are replayed."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.scheduler.core import Device, Policy
from orchestrator.scheduler.simulator.replay import Knowledge, Segment, replay
from orchestrator.scheduler.simulator.summary import Summary, summarise
from orchestrator.scheduler.simulator.trace import GIB, Course, RecordedJob, TraceJob, claim_bytes

Order = Literal["progress", "fifo"]
LARGEST_CHANGE = 64  # devices
MOST_SLICES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Differences from the pool and the policy as they are."""

    order: Order = "progress"  # by progress, with preemption; or first come, first served
    preemption: bool = True
    more_devices: int = 0  # below 0: fewer
    split_devices: int = 0  # devices that are cut into slices
    slices: int = MOST_SLICES  # slices per cut device
    measured_memory: bool = False  # jobs claim their measured peak and share devices


@dataclass(frozen=True, slots=True)
class Replayed:
    summary: Summary | None
    left_out: int  # jobs that this pool could never hold


def run(
    jobs: Sequence[RecordedJob], devices: tuple[Device, ...], variant: Variant, *, restart_s: float = 60.0
) -> Replayed:
    """Replay the jobs under a variant of the pool and the policy."""
    pool = devices_of(devices, variant)
    traces = [_trace(job, variant, max(device.total_bytes for device in pool)) for job in jobs]
    fitting = [job for job in traces if _fits(job, pool)]
    if not fitting:
        return Replayed(None, len(traces))
    policy = Policy.progress_aware() if variant.order == "progress" else Policy()
    knowledge = Knowledge(
        priorities=True, restart_s=restart_s, preemptible=variant.preemption and variant.order == "progress"
    )
    outcome = replay(fitting, pool, replace(policy, span_nodes=True), knowledge)
    courses = _courses(fitting, outcome.segments)
    summary = summarise(
        courses,
        [job.duration_s for job in fitting],
        len(devices) + variant.more_devices,
        restarts=outcome.restarts,
    )
    return Replayed(summary, len(traces) - len(fitting))


def devices_of(devices: tuple[Device, ...], variant: Variant) -> tuple[Device, ...]:
    """The pool of a variant: new devices equal the last one, and the last devices are cut."""
    last = devices[-1]
    kept = devices[: len(devices) + min(0, variant.more_devices)]
    added = tuple(
        replace(last, id=f"added-{number}", index=last.index + number, nvlink=())
        for number in range(1, variant.more_devices + 1)
    )
    pool = [*kept, *added]
    cut = pool[len(pool) - variant.split_devices :] if variant.split_devices else []
    slices = [
        replace(
            device,
            id=f"{device.id}/{number}",
            total_bytes=device.total_bytes // variant.slices,
            mig_parent=device.id,
            mig_profile=f"1/{variant.slices}",
            nvlink=(),
        )
        for device in cut
        for number in range(variant.slices)
    ]
    return (*pool[: len(pool) - len(cut)], *slices)


def _trace(job: RecordedJob, variant: Variant, device_bytes: int) -> TraceJob:
    """The job with the claim that the variant gives it."""
    trace = job.trace
    if not (variant.measured_memory or variant.split_devices) or job.peak_gib is None:
        return trace
    if trace.gpu_milli < 1000 and not variant.measured_memory:
        return trace
    claim_gib = 1.1 * job.peak_gib
    milli = max(1, min(1000, round(1000 * claim_gib * GIB / device_bytes)))
    return replace(trace, gpu_milli=milli, mem_gib=claim_gib if milli < 1000 else None)


def _fits(job: TraceJob, pool: tuple[Device, ...]) -> bool:
    claim = claim_bytes(job, max(device.total_bytes for device in pool)) or 0
    may_slice = job.gpus == 1 and job.gpu_milli < 1000
    usable = [device for device in pool if may_slice or device.mig_parent is None]
    return sum(device.total_bytes >= claim for device in usable) >= job.gpus


def _courses(jobs: Sequence[TraceJob], segments: Sequence[Segment]) -> list[Course]:
    ran: dict[str, float] = defaultdict(float)
    ended: dict[str, float] = {}
    for segment in segments:
        ran[segment.job_id] += segment.end_s - segment.start_s
        ended[segment.job_id] = max(segment.end_s, ended.get(segment.job_id, segment.end_s))
    return [
        Course(
            job.user,
            job.arrival_s,
            ended[job.id],
            ran[job.id],
            job.duration_s * job.gpus * job.gpu_milli / 1000,
        )
        for job in jobs
    ]
