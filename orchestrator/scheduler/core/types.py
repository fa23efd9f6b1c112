"""What ``decide`` takes: a pool, its jobs, and the policy.

All times are seconds on one clock of the caller's choice (``now`` included), all memory is bytes.
Every class is frozen, so a state may be shared between a pass, an explanation and a simulation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.scheduler.core.neighbours import UNKNOWN, Neighbours

Facts = Mapping[str, Any]  # what a sentence is made of, by name; JSON can keep it


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as the scheduler sees it.

    Nothing is placed on a device unless ``admin_state`` is "enabled" and ``health`` is "ok".
    """

    id: str
    node: str
    pool: str
    total_bytes: int
    kind: str = "gpu"  # gpu, cpu or sim
    model: str = ""  # what ``Neighbours`` calls devices of this kind
    index: int = 0  # the number that people see: "GPU 3"
    used_bytes: int = 0  # measured, all processes
    foreign_bytes: int = 0  # measured, held by external processes
    residue_bytes: int = 0  # measured, held by processes of attempts that have ended
    admin_state: str = "enabled"  # enabled, draining, disabled
    health: str = "ok"  # ok, fenced, faulty, missing
    numa_node: int | None = None
    nvlink: tuple[str, ...] = ()  # ids of directly linked devices
    mig_parent: str | None = None
    mig_profile: str | None = None

    @property
    def offered(self) -> bool:
        return self.admin_state == "enabled" and self.health == "ok"

    @property
    def others_bytes(self) -> int:
        """Memory held outside running jobs, which no job can have."""
        return self.foreign_bytes + self.residue_bytes


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a device for one rank."""

    device_id: str
    memory_bytes: int | None = None  # None: the whole device, alone
    held_bytes: int = 0  # measured, of a job that may hold more than it claims

    @property
    def taken_bytes(self) -> int | None:
        """The memory that others cannot have now; None: the whole device."""
        return None if self.memory_bytes is None else max(self.memory_bytes, self.held_bytes)

    @property
    def beyond_bytes(self) -> int:
        """The memory held beyond the claim, which is given back when another job needs it."""
        return 0 if self.memory_bytes is None else max(0, self.held_bytes - self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Where a job may run; empty tuples allow everything."""

    only_devices: tuple[str, ...] = ()
    avoid_devices: tuple[str, ...] = ()  # for example where an earlier attempt met a fault
    only_nodes: tuple[str, ...] = ()
    for_data: bool = False  # ``only_nodes`` are those that have its data
    for_image: bool = False  # ``only_nodes`` is the one that has its container image
    for_packages: bool = False  # ``only_nodes`` have its packages, and others are building them
    mig_profile: str | None = None
    slices: bool = True  # False: whole GPUs only, because ranks on MIG slices cannot communicate
    booked_devices: tuple[str, ...] = ()  # booked for others now; available at other times
    spans: bool = False  # over several nodes, where no single one could ever have it


ANYWHERE = Constraints()
WHOLE_GPUS = Constraints(slices=False)
OVER_NODES = Constraints(slices=False, spans=True)


@dataclass(frozen=True, slots=True)
class Scaling:
    """The numbers of devices that a job may have, and how its speed follows them (Amdahl's law)."""

    least: int
    most: int
    serial: float = 0.1  # the share of a step that more devices do not shorten
    measured: bool = False  # ``serial`` was measured by runs of the same code
    elastic: bool = True  # may change the number while it runs
    batch: int | None = None  # samples of a step, which the number must divide; None: unknown

    def speed(self, count: int) -> float:
        """How much faster than one device ``count`` devices are."""
        return count / (1 + self.serial * (count - 1))

    def efficiency(self, count: int) -> float:
        return self.speed(count) / count

    def fitting(self, count: int) -> int:
        """The largest number up to ``count`` that divides the batch; the least if none does."""
        numbers = range(min(count, self.most), self.least, -1)
        return next((one for one in numbers if not self.batch or self.batch % one == 0), self.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A queued or running job as the scheduler sees it."""

    id: str
    owner: str
    pool: str
    gpus: int = 1
    needs_gpu: bool = True  # False: it holds a CPU slot, which counts for no limit over all pools
    name: str = ""  # for sentences; if empty, the end of the id is used
    memory_bytes: int | None = None  # on each device; None: whole devices
    priority: int = 50
    submitted: float = 0.0
    owner_place: int | None = None  # its place in the order that its owner gave their jobs
    time_limit_s: float | None = None  # running time over all attempts
    grace_s: float = 30.0  # between SIGTERM and the end of the sandbox
    ran_s: float = 0.0  # over all attempts, the current one included
    attained_gpu_s: float = 0.0
    progress_done: float | None = None  # in steps, as the job reports them
    progress_total: float | None = None
    step_s: float | None = None
    checkpoint_age_s: float | None = None  # None: there is no checkpoint
    restart_cost_s: float | None = None
    preemptible: bool = True
    constraints: Constraints = ANYWHERE
    array: str | None = None  # the array it belongs to
    array_at_most: int | None = None  # members of the array that hold devices at once; None: no limit
    agent: str | None = None  # the program that submitted it for its owner
    agent_width: int | None = None  # devices that the agent's jobs hold at once
    scaling: Scaling | None = None  # None: it runs on ``gpus`` devices and no other number
    work: str = ""  # equal for jobs that ``Neighbours`` knows as one; empty: it knows nothing of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """The current or next occurrence of a reservation for people or of a maintenance window."""

    id: str
    name: str
    pool: str
    start: float
    until: float | None = None  # None: until it is deleted
    count: int | None = None  # any devices of this number; None: ``device_ids``
    device_ids: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()  # the people it is for; empty: maintenance
    ends_there: bool = (
        False  # the devices go away at ``until``: whatever runs there by ``start`` leaves with a checkpoint
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob(Job):
    """A job that waits for devices."""

    not_before: float | None = None
    waits_for: tuple[str, ...] = ()  # jobs it depends on that have not ended as required
    waits_for_end: tuple[str, ...] = ()  # the ones among them that may end in any way
    checking_out: Facts | None = None  # how far its code is; None: it is there
    preparing: Facts | None = None  # how far its packages are; None: they are there
    fetching: Facts | None = None  # how far the data that it names is; None: it is there
    planning: bool = False  # the memory that it needs is being planned
    kept_away_by: tuple[Booking, ...] = ()  # set by ``decide``: the causes of ``constraints.booked_devices``

    @property
    def has_all_it_needs(self) -> bool:
        """Whether its code, its packages and its data are there, and its plan if it waits for one."""
        there = self.checking_out is None and self.preparing is None and self.fetching is None
        return there and not self.planning


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob(Job):
    """A job that holds devices: starting, running, stopping or unknown."""

    shares: tuple[Share, ...]
    started: float  # this attempt
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long finished jobs ran, as quantiles in ascending order; made by ``learn_lengths``.

    As fractions of their time limits if those predict run times better than plain seconds do.
    """

    of_limit: bool = False
    quantiles: tuple[float, ...] = ()


NOTHING_LEARNED = Lengths()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUsage:
    """What an owner has used and may use."""

    owner: str
    decayed_gpu_s: float = 0.0  # memory-weighted: half of a GPU counts half
    weight: float = 1.0
    max_devices: int | None = None  # at the same time; None: no limit
    max_running: int | None = None  # jobs at the same time
    week_gpu_s: float = 0.0  # used in the last seven days, memory-weighted
    max_week_gpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimit:
    """What an owner may use of one pool, in addition to the limits that hold everywhere."""

    owner: str
    pool: str
    max_devices: int | None = None
    week_gpu_s: float = 0.0
    max_week_gpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """Devices that an earlier pass reserved for a waiting job."""

    job_id: str
    device_ids: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryHold:
    """Devices of a job's last attempt that are kept for its next attempt for a short time."""

    job_id: str
    owner: str
    pool: str
    device_ids: tuple[str, ...]
    until: float
    name: str = ""
    priority: int = 50


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """How often a request of this shape was seen recently."""

    gpus: int
    memory_bytes: int | None
    count: int


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """Why nothing can start in a pool now."""

    pool: str
    driver: str = ""  # what its driver says; empty: nobody reads the devices


@dataclass(frozen=True, slots=True)
class LentPool:
    """A pool whose devices another system lends, such as Slurm: more may come for a job that waits."""

    pool: str
    devices: int  # of one allocation
    longest_s: float  # for which a job can use an allocation
    facts: Facts  # what is known of allocations that were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The snapshot that one pass works on; the order inside the tuples has no meaning."""

    now: float
    devices: tuple[Device, ...] = ()
    queued: tuple[QueuedJob, ...] = ()
    running: tuple[RunningJob, ...] = ()
    usage: tuple[OwnerUsage, ...] = ()
    pool_limits: tuple[PoolLimit, ...] = ()
    reservations: tuple[BackfillReservation, ...] = ()
    bookings: tuple[Booking, ...] = ()
    retry_holds: tuple[RetryHold, ...] = ()
    recent_shapes: tuple[ShapeCount, ...] = ()
    problems: tuple[PoolProblem, ...] = ()
    lent: tuple[LentPool, ...] = ()
    lengths: Lengths = NOTHING_LEARNED
    neighbours: Neighbours = UNKNOWN
    start_errors: tuple[float, float] | None = None  # actual wait / expected wait: low and high quantile

    def openings(self) -> list[float]:
        """When jobs with a future start time become ready."""
        return [job.not_before for job in self.queued if job.not_before and job.not_before > self.now]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What an operator may set.  Default: priority, first come, backfill reservation, no preemption."""

    foreign_allowed_bytes: int = 64 * 2**20  # a display server does not make a GPU unusable
    estimate_error: float = 0.15  # half the width of a range predicted from progress
    booking_notice_s: float = 24 * 3600.0  # jobs of unknown end keep away this long before a booking
    predicted_jobs: int = 16  # waiting jobs per pool that get an estimated start
    by_remaining: bool = False  # rank by remaining work and preempt; the fields below count only then
    span_nodes: bool = False  # a job larger than a node gets whole nodes
    trial_s: float = 180.0  # the time a job that never ran gets ahead of the rest; 0: none
    trial_restarts: float = 3.0  # a trial need not last longer than this many restarts of its job
    longest_trial_restart_s: float = 60.0  # jobs that take longer to stop and resume have no trial
    restart_cost_s: float = 60.0  # of jobs without a measured one
    gpu_time_weight: float | None = None  # 0: least time first, 1: least GPU-time; None: by pool
    stay_factor: float = 1.5  # a running job must be worse by this before it is stopped
    quantum_restarts: float = 0.0  # a resumed job runs this many restart costs before it is stopped
    feedback_gpu_s: float = 900.0  # first level of silent jobs
    feedback_factor: float = 4.0
    ageing_ratio: float | None = 30.0  # wait / (run + remaining) that lifts a job one level
    silent_lifts: int = 2  # levels that a silent job is lifted within that ratio
    swaps: int = 5  # sizes of large jobs that may replace several small ones
    fair_share_ratio: float | None = None  # owners who used more than this multiple of the mean start later
    late_factor: float = 2.0  # their jobs that never ran rank as if this many times the work remained
    late_trial_s: float = 600.0  # their trials rank as if submitted this much later
    least_efficiency: float = 0.5  # of the devices of a job whose number is chosen
    resize_gain: float = 3.0  # a resize must save this many times what the restart costs
    resize_pause_s: float = 600.0  # a job keeps its number at least this long

    @classmethod
    def progress_aware(cls) -> "Policy":
        """The whole policy: trial, fair share, least remaining work, feedback, ageing, preemption."""
        return cls(by_remaining=True, fair_share_ratio=1.5)
