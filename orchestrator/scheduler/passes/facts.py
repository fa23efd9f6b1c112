"""Rows as the scheduler sees them: devices, jobs and bookings."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypedDict

from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs import datasets, memory_claims
from orchestrator.jobs.progress import supervised_s
from orchestrator.live.readings import DeviceEntry
from orchestrator.models import (
    FEDERATION_VARIABLE,
    LOCAL_NODE,
    Booking,
    BookingKind,
    Device,
    Job,
    JobState,
    Lease,
    Network,
)
from orchestrator.scheduler import core
from orchestrator.spec.remote_data import looks_remote


def device_facts(
    row: Device, reading: DeviceEntry | None, holders: Collection[tuple[str, int]] = ()
) -> core.Device:
    """The scheduler's view of a device: its row and its newest reading.

    Args:
        holders: job and number of the attempts that hold the device now.
    """
    return core.Device(
        id=row.id,
        node=row.node,
        pool=row.pool_id,
        total_bytes=row.memory_bytes,
        kind=row.kind,
        model=row.name,
        index=row.index,
        used_bytes=reading["used_bytes"] if reading else 0,
        foreign_bytes=reading["foreign_bytes"] if reading else 0,
        residue_bytes=_residue_bytes(reading, holders) if reading and row.kind == "gpu" else 0,
        admin_state=row.admin_state,
        health=row.health,
        numa_node=row.numa_node,
        nvlink=tuple(row.nvlink),
        mig_parent=row.mig_parent or None,
        mig_profile=row.mig_profile or None,
    )


def _residue_bytes(reading: DeviceEntry, holders: Collection[tuple[str, int]]) -> int:
    """Memory that attempts which no longer hold the device had at its last reading; free once a reading shows 0."""
    return sum(
        process["used_bytes"]
        for process in reading.get("processes", ())
        if process.get("attempt") is not None and (process["job"], process["attempt"]) not in holders
    )


BEHIND_PEOPLE = 101  # takes the highest priority of an agent's job below the lowest of a person's


class JobFacts(TypedDict):
    """The fields of ``core.Job`` that come from a job's row."""

    id: str
    owner: str
    pool: str
    gpus: int
    needs_gpu: bool
    constraints: core.Constraints
    name: str
    memory_bytes: int | None
    priority: int
    submitted: float
    owner_place: int | None
    time_limit_s: float | None
    grace_s: float
    ran_s: float
    attained_gpu_s: float
    progress_done: float | None
    progress_total: float | None
    step_s: float | None
    restart_cost_s: float | None
    preemptible: bool
    array: str | None
    array_at_most: int | None
    agent: str | None
    agent_width: int | None
    work: str


# Of jobs that need something which only this server has.
HERE = core.Constraints(only_nodes=(LOCAL_NODE,))
HERE_WHOLE_GPUS = core.Constraints(slices=False, only_nodes=(LOCAL_NODE,))
WITH_IMAGE = core.Constraints(only_nodes=(LOCAL_NODE,), for_image=True)
WITH_IMAGE_WHOLE_GPUS = core.Constraints(slices=False, only_nodes=(LOCAL_NODE,), for_image=True)


class Furnished(NamedTuple):
    """Where else an environment is: servers that have it, and servers that can still build it."""

    ready: frozenset[str] = frozenset()
    coming: frozenset[str] = frozenset()


class Elsewhere:
    """What other servers have that jobs may need; one for a pass."""

    def __init__(
        self,
        data: Mapping[str, Collection[str]],
        packages: Mapping[int, Furnished] | None = None,
        *,
        nodes: Mapping[str, Collection[str]] | None = None,
        lent: Collection[str] = (),
    ) -> None:
        """What other servers have.

        Args:
            data: the names of the datasets that each server has, some with their version.
            packages: the environments that are not of this server alone, by number.
            nodes: the servers of each pool.
            lent: the pools to which further servers may come.
        """
        self._data = data
        self._packages = packages or {}
        self._nodes = nodes or {}
        self._lent = lent
        self._names: dict[tuple[str, int], str] = {}

    def with_data(self, job: Job) -> tuple[str, ...]:
        """The servers that have all datasets of a job, this one among them."""
        if not self._data:
            return (LOCAL_NODE,)
        names = [self._full_name(reference, job) for reference in job.spec_fields["datasets"]]
        there = [node for node, data in self._data.items() if all(_has(data, name) for name in names)]
        return (LOCAL_NODE, *sorted(there))

    def with_packages(self, job: Job) -> tuple[str, ...]:
        """The servers that have the packages of a job, this one among them."""
        return (LOCAL_NODE, *sorted(self._furnished(job).ready))

    def may_build(self, job: Job) -> bool:
        """Whether another server of the job's pool may have its packages later."""
        if job.environment_id not in self._packages:
            return False
        there = self._furnished(job).coming
        return job.pool_id in self._lent or any(node in there for node in self._nodes.get(job.pool_id, ()))

    def _furnished(self, job: Job) -> Furnished:
        return (
            Furnished() if job.environment_id is None else self._packages.get(job.environment_id, Furnished())
        )

    def _full_name(self, reference: str, job: Job) -> str:
        """Empty for data that only this server has: fetched by address, or pushed by a person."""
        key = (reference, job.owner_id)
        if key not in self._names:
            self._names[key] = ""
            with suppress(OrchestratorError):
                dataset = None if looks_remote(reference) else datasets.resolve(reference, job.owner)
                if dataset is not None and dataset.root_id is not None:
                    self._names[key] = datasets.full_name(dataset)
        return self._names[key]


def _has(data: Collection[str], name: str) -> bool:
    return bool(name) and (name in data or name.partition("@")[0] in data)


def job_facts(job: Job, work: str = "", *, elsewhere: Elsewhere | None = None) -> JobFacts:
    """The scheduler's view of a job.

    Args:
        elsewhere: other servers, if there are devices of any.
    """
    spec = job.spec_fields
    return {
        "id": str(job.pk),
        "owner": job.owner.get_username(),
        "pool": job.pool_id,
        "gpus": job.gpus,
        "needs_gpu": spec.get("gpus") != 0,
        "constraints": _where(job, elsewhere),
        "name": job.name,
        "memory_bytes": job.claimed_bytes,
        "priority": job.priority - BEHIND_PEOPLE if job.agent else job.priority,
        "submitted": job.submitted_at.timestamp(),
        "owner_place": job.own_place,
        "time_limit_s": job.time_limit_s,
        "grace_s": spec.get("grace_period_s", 30.0),
        "ran_s": job.seconds_run,
        "attained_gpu_s": job.attained_gpu_s,
        "progress_done": None if job.step is None else float(job.step),
        "progress_total": None if job.total_steps is None else float(job.total_steps),
        "step_s": 1 / job.steps_per_s if job.steps_per_s else None,
        "restart_cost_s": job.restart_cost_s,
        "preemptible": job.seen_to_resume or bool(spec.get("preemptible")),
        "array": None if job.array_id is None else str(job.array_id),
        "array_at_most": None if job.array is None else job.array.at_most,
        "agent": f"{job.agent['name']} {job.agent['token']}" if job.agent else None,
        "agent_width": job.agent["width"] if job.agent else None,
        "work": work,
    }


def _where(job: Job, elsewhere: Elsewhere | None) -> core.Constraints:
    several = job.gpus > 1
    usual = core.WHOLE_GPUS if several else core.ANYWHERE
    if elsewhere is None:
        return usual
    if job.spec_fields.get("image"):
        return WITH_IMAGE_WHOLE_GPUS if several else WITH_IMAGE
    here = HERE_WHOLE_GPUS if several else HERE
    if _needs_this_server(job):
        return here
    spans, for_data = several and _may_span(job), bool(job.spec_fields.get("datasets"))
    if not for_data and job.environment_id is None:
        return core.OVER_NODES if spans else usual
    nodes = elsewhere.with_data(job) if for_data else elsewhere.with_packages(job)
    if for_data and job.environment_id is not None:
        there = elsewhere.with_packages(job)
        nodes = tuple(node for node in nodes if node in there)
    for_packages = not for_data and elsewhere.may_build(job)
    if len(nodes) == 1 and not for_packages:
        return here
    return core.Constraints(
        only_nodes=nodes, for_data=for_data, for_packages=for_packages, slices=not several, spans=spans
    )


def _may_span(job: Job) -> bool:
    """Whether torchrun can start its ranks on several servers: a command starts its own, and ranks have to meet."""
    return not job.spec_fields.get("command") and job.pool.network != Network.NONE


def _needs_this_server(job: Job) -> bool:
    """Whether a job uses a Python, a socket or the folder of a federation of this server."""
    spec = job.spec_fields
    if FEDERATION_VARIABLE in (spec.get("env") or {}):
        return True
    return bool(job.has_socket or spec.get("python"))


def running_facts(
    job: Job,
    leases: Sequence[Lease],
    checkpoint_at: datetime | None,
    now: datetime,
    scaling: core.Scaling | None = None,
    work: str = "",
    *,
    elsewhere: Elsewhere | None = None,
    held: Mapping[str, DeviceEntry] = {},
) -> core.RunningJob:
    """The scheduler's view of a job that holds devices; ``leases`` come with their attempt and devices.

    Args:
        held: the newest readings by device, which tell what a job with a memory limit above its claim holds.
    """
    facts = job_facts(job, work, elsewhere=elsewhere)
    started = leases[0].started_at
    ran_s = _ran_s(leases[0], now)
    facts["ran_s"] += ran_s
    facts["attained_gpu_s"] += ran_s * sum(lease.part for lease in leases)
    if job.state == JobState.UNKNOWN:
        facts["preemptible"] = False  # a supervisor that does not answer cannot be asked to stop
    saved_s = None if checkpoint_at is None else max(0.0, (now - checkpoint_at).total_seconds())
    return core.RunningJob(
        **facts,
        # The work that stopping would lose: everything since the last checkpoint, or since the start.
        checkpoint_age_s=ran_s if saved_s is None else min(ran_s, saved_s),
        shares=tuple(
            core.Share(
                lease.device_id, lease.memory_bytes, _held_bytes(job, lease, held.get(lease.device_id))
            )
            for lease in leases
        ),
        started=started.timestamp(),
        stopping=job.state == JobState.STOPPING,
        scaling=scaling if job.state == JobState.RUNNING else None,
    )


def _held_bytes(job: Job, lease: Lease, reading: DeviceEntry | None) -> int:
    """What a job holds of a device; counted only if that may be, and is, more than its claim."""
    claim = lease.memory_bytes
    if claim is None or reading is None or memory_claims.most_bytes(job, claim) <= claim:
        return 0
    held = sum(
        process["used_bytes"]
        for process in reading.get("processes", ())
        if process["job"] == str(job.pk) and process.get("attempt") == lease.attempt.number
    )
    return held if held > claim + memory_claims.slack_bytes(claim) else 0


def _ran_s(lease: Lease, now: datetime) -> float:
    """Seconds that the attempt has run; by the wall clock only until its supervisor is there."""
    run_s = supervised_s(lease.attempt)
    return max(0.0, (now - lease.started_at).total_seconds()) if run_s is None else run_s


def bookings(now: datetime) -> tuple[core.Booking, ...]:
    """The current or next occurrence of every booking that is not over."""
    rows = Booking.objects.not_over(now).prefetch_related("devices", "people")
    occurrences = [(row, row.occurrence(now)) for row in rows]
    return tuple(
        core.Booking(
            id=str(row.pk),
            name=row.name,
            pool=row.pool_id,
            start=when[0].timestamp(),
            until=None if when[1] is None else when[1].timestamp(),
            count=row.count,
            device_ids=tuple(sorted(device.pk for device in row.devices.all())),
            owners=tuple(sorted(person.get_username() for person in row.people.all()))
            if row.kind == BookingKind.RESERVATION
            else (),
        )
        for row, when in occurrences
        if when is not None
    )
