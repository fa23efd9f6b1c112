"""What ``decide`` is given and what it answers.

All times are seconds on one clock of the caller's choice (``now`` included), all memory is bytes.
Every class is frozen, so a state may be shared between a pass, an explanation and a simulation.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


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
    index: int = 0  # number shown to people: "GPU 3"
    used_bytes: int = 0  # measured, all processes
    foreign_bytes: int = 0  # measured, held by processes that are not Berth's
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
        """What no running job of Berth's holds, and none can have."""
        return self.foreign_bytes + self.residue_bytes


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a device for one rank."""

    device_id: str
    memory_bytes: int | None = None  # None: the whole device, alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Where a job may run; empty tuples allow everything."""

    only_devices: tuple[str, ...] = ()
    avoid_devices: tuple[str, ...] = ()  # for example where an earlier attempt met a fault
    only_nodes: tuple[str, ...] = ()
    mig_profile: str | None = None
    slices: bool = True  # False: whole GPUs only, because ranks on MIG slices cannot talk to each other
    booked_devices: tuple[str, ...] = ()  # kept for others by the calendar; free again at another time


ANYWHERE = Constraints()
WHOLE_GPUS = Constraints(slices=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is known about a job, queued or running."""

    id: str
    owner: str
    pool: str
    gpus: int = 1
    name: str = ""  # for sentences; the end of the id where empty
    memory_bytes: int | None = None  # on each of the devices; None: whole devices
    priority: int = 50
    submitted: float = 0.0
    wish: int | None = None  # its place among those of its owner's jobs that they gave an order
    time_limit_s: float | None = None  # of running time over all attempts
    grace_s: float = 30.0  # between SIGTERM and the end of the sandbox
    ran_s: float = 0.0  # over all attempts, the present one included
    attained_gpu_s: float = 0.0
    progress_done: float | None = None  # in steps, as the job itself reports them
    progress_total: float | None = None
    step_s: float | None = None
    checkpoint_age_s: float | None = None  # None: there is no checkpoint
    restart_cost_s: float | None = None
    preemptible: bool = True
    constraints: Constraints = ANYWHERE
    peak_bytes: int | None = None  # learned from earlier runs, for each device
    peak_spread_bytes: int | None = None
    array: str | None = None  # the array it belongs to
    array_at_most: int | None = None  # members of the array that hold devices at once; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """One time of a standing reservation or a maintenance window: the one that is on, or the next."""

    id: str
    name: str
    pool: str
    start: float
    until: float | None = None  # None: until somebody takes it away
    count: int | None = None  # so many devices, whichever are free; None: ``device_ids``
    device_ids: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()  # for whom; nobody: maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob(Job):
    """A job that waits for devices."""

    not_before: float | None = None
    waits_for: tuple[str, ...] = ()  # jobs it depends on that have not ended as it needs
    waits_for_end: tuple[str, ...] = ()  # those of them that may end in any way
    kept_away_by: tuple[Booking, ...] = ()  # set by ``decide``: why ``constraints`` has booked devices


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob(Job):
    """A job that holds devices: starting, running, stopping or unknown."""

    shares: tuple[Share, ...]
    started: float  # this attempt
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long finished jobs ran, as quantiles in ascending order; ``learn_lengths`` makes it.

    In parts of their time limit where the limits say more than the plain seconds do.
    """

    of_limit: bool = False
    quantiles: tuple[float, ...] = ()


NOTHING_LEARNED = Lengths()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUsage:
    """What an owner used and may use."""

    owner: str
    decayed_gpu_s: float = 0.0  # memory-weighted: half of a GPU counts half
    weight: float = 1.0
    max_devices: int | None = None  # at the same time; None: no limit
    max_running: int | None = None  # jobs at the same time
    week_gpu_s: float = 0.0  # used in the last seven days, memory-weighted
    max_week_gpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimit:
    """What an owner may use of one pool, beside the limits that hold everywhere."""

    owner: str
    pool: str
    max_devices: int | None = None
    week_gpu_s: float = 0.0
    max_week_gpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices that an earlier pass decided to keep for a job."""

    job_id: str
    device_ids: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Devices of a job's last attempt that are kept for its next one, for a short time."""

    job_id: str
    owner: str
    pool: str
    device_ids: tuple[str, ...]
    until: float
    name: str = ""
    priority: int = 50


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """How often a request of this shape was seen lately."""

    gpus: int
    memory_bytes: int | None
    count: int


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """Why nothing can start in a pool now; the sentence is shown to people as it is."""

    pool: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The snapshot that one pass works on; the order inside the tuples has no meaning."""

    now: float
    devices: tuple[Device, ...] = ()
    queued: tuple[QueuedJob, ...] = ()
    running: tuple[RunningJob, ...] = ()
    usage: tuple[OwnerUsage, ...] = ()
    pool_limits: tuple[PoolLimit, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    bookings: tuple[Booking, ...] = ()
    keeps: tuple[Keep, ...] = ()
    recent_shapes: tuple[ShapeCount, ...] = ()
    problems: tuple[PoolProblem, ...] = ()
    lengths: Lengths = NOTHING_LEARNED
    start_errors: tuple[float, float] | None = None  # real wait / predicted wait: low and high quantile

    def openings(self) -> list[float]:
        """When jobs that were asked to start later become ready."""
        return [job.not_before for job in self.queued if job.not_before and job.not_before > self.now]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What an operator may set.  As it stands: priority, first come, EASY reservation, no preemption."""

    foreign_allowed_bytes: int = 64 * 2**20  # a display server does not make a GPU unusable
    estimate_error: float = 0.15  # half width of a range predicted from progress
    booking_notice_s: float = 24 * 3600.0  # so long before a booking jobs without a known end keep away
    predicted_jobs: int = 16  # waiting jobs of each pool that get a predicted start
    by_remaining: bool = False  # rank by remaining work and preempt; the fields below count only then
    span_nodes: bool = False  # a job larger than a node gets whole nodes
    trial_s: float = 180.0  # what a job that never ran gets ahead of the rest; 0: none
    trial_restarts: float = 3.0  # a trial need not be longer than so many restarts of its job
    longest_trial_restart_s: float = 60.0  # jobs that cost more to stop and resume have no trial
    restart_cost_s: float = 60.0  # of jobs that do not say
    gpu_time_weight: float | None = None  # 0: least time first, 1: least GPU-time; None: by pool
    stay_factor: float = 1.5  # a running job must be worse by this before it is stopped
    quantum_restarts: float = 0.0  # a resumed job runs so many restart costs before it is stopped
    feedback_gpu_s: float = 900.0  # first level of jobs that report nothing
    feedback_factor: float = 4.0
    ageing_ratio: float | None = 30.0  # wait / (run + left) that lifts a job one level
    silent_lifts: int = 2  # of a job that reports nothing, within that ratio
    swaps: int = 5  # sizes for which a large job may replace several small ones
    fair_share_ratio: float | None = None  # who used more than so many times the mean begins later: ...
    late_factor: float = 2.0  # ... as if jobs that never ran had so many times as much left ...
    late_trial_s: float = 600.0  # ... and as if their trials had come so much later

    @classmethod
    def progress_aware(cls) -> "Policy":
        """The whole policy: trial, fair share, least remaining work, feedback, ageing, preemption."""
        return cls(by_remaining=True, fair_share_ratio=1.5)


class WaitCode(StrEnum):
    """Why a job waits, for machines."""

    DEVICES = "devices"  # too few are free
    MEMORY = "memory"  # none has so much memory free
    HELD = "held"  # enough are free, but held for a job ahead
    RESERVED = "reserved"  # the calendar keeps for others what it could use
    UNAVAILABLE = "unavailable"  # too few are enabled, healthy and free of foreign processes
    NO_DEVICES = "no_devices"  # the pool is empty
    POOL = "pool"  # the pool has a problem
    DEPENDS = "depends"
    NOT_BEFORE = "not_before"
    QUOTA = "quota"
    ARRAY = "array"  # as many of its array hold devices as may at once
    IMPOSSIBLE = "impossible"  # the pool can never fit it

    __hash__ = str.__hash__  # an enumeration's own is slow, and a pass asks ten thousand times


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job now: one share for every rank, in the order of the ranks."""

    job_id: str
    devices: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop a running job so that another can start."""

    job_id: str
    for_job_id: str


@dataclass(frozen=True, slots=True)
class Vacate:
    """Stop a running job because its devices are booked for others."""

    job_id: str
    booking: str  # its name


@dataclass(frozen=True, slots=True)
class Reserve:
    """Keep these devices for a job until it starts; give it back as a ``Reservation``."""

    job_id: str
    device_ids: tuple[str, ...]
    open_until: float | None = None  # a job that surely ends by then may start there; None: no job may


class Wait(NamedTuple):
    """Why a job does not start now.  A tuple, because a pass may make ten thousand of them."""

    job_id: str
    code: WaitCode
    sentence: str
    position: int  # among the waiting jobs of its pool; 1 is the next
    blocked_by: tuple[str, ...] = ()  # jobs that hold what it needs
    ahead: tuple[str, ...] = ()  # the first few waiting jobs that come before it
    start_earliest: float | None = None  # None: not known
    start_latest: float | None = None
    foreseen_s: float | None = None  # the wait that the range was made of, for ``State.start_errors``


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The answer of a pass; every queued job is in ``start`` or in ``wait``."""

    start: tuple[Start, ...] = ()
    preempt: tuple[Preempt, ...] = ()
    vacate: tuple[Vacate, ...] = ()
    reserve: tuple[Reserve, ...] = ()
    wait: tuple[Wait, ...] = ()  # in the order in which the jobs are served
    next_wake: float | None = None  # call again then even if nothing changed
