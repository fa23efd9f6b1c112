"""Which job gets which devices: pure, without clock, I/O, database or randomness."""

from orchestrator.scheduling.decide import decide
from orchestrator.scheduling.lengths import learn_lengths
from orchestrator.scheduling.types import (
    Constraints,
    Decisions,
    Device,
    Job,
    Lengths,
    OwnerUsage,
    Policy,
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
]
