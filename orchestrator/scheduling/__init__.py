"""Which job gets which devices: pure, without clock, I/O, database or randomness."""

from orchestrator.scheduling.decide import decide
from orchestrator.scheduling.lengths import learn_lengths
from orchestrator.scheduling.promises import learn_start_errors
from orchestrator.scheduling.types import (
    Constraints,
    Decisions,
    Device,
    Job,
    Lengths,
    OwnerUsage,
    Policy,
    PoolLimit,
    PoolProblem,
    Preempt,
    QueuedJob,
    Reservation,
    Reserve,
    RunningJob,
    ShapeCount,
    Share,
    Start,
    State,
    Wait,
    WaitCode,
)

__all__ = [
    "Constraints",
    "Decisions",
    "Device",
    "Job",
    "Lengths",
    "OwnerUsage",
    "Policy",
    "PoolLimit",
    "PoolProblem",
    "Preempt",
    "QueuedJob",
    "Reservation",
    "Reserve",
    "RunningJob",
    "ShapeCount",
    "Share",
    "Start",
    "State",
    "Wait",
    "WaitCode",
    "decide",
    "learn_lengths",
    "learn_start_errors",
]
