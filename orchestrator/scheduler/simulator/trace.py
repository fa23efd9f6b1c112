"""Jobs of a replay: of a trace, with what was measured of them, and how they fared."""

from dataclasses import dataclass

GIB = 2**30
POOL = "pool"


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One line of a trace; ``duration_s`` is the true run time, which no policy may see."""

    id: str
    arrival_s: float
    gpus: int
    gpu_milli: int
    mem_gib: float | None
    duration_s: float
    limit_s: float | None
    user: str
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A job that ran, with its measured peak memory."""

    trace: TraceJob
    peak_gib: float | None  # of its largest rank; None: not measured


@dataclass(frozen=True, slots=True)
class Course:
    """One job from its submit to its end."""

    user: str
    submitted_s: float
    ended_s: float
    ran_s: float  # on its devices, over all attempts
    gpu_s: float  # on its devices; shared devices count in proportion

    @property
    def wait_s(self) -> float:
        """Total waiting time: before the first start and after being stopped for other jobs."""
        return max(0.0, self.turnaround_s - self.ran_s)

    @property
    def turnaround_s(self) -> float:
        return max(0.0, self.ended_s - self.submitted_s)


def claim_bytes(job: TraceJob, device_bytes: int) -> int | None:
    """The memory claim that stands for a share of a GPU: compute is shared in the same proportion."""
    if job.gpu_milli >= 1000:
        return None
    claim = job.gpu_milli * device_bytes // 1000
    return claim if job.mem_gib is None else max(claim, round(job.mem_gib * GIB))
