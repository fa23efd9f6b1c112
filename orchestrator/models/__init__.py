"""One file for each noun; import them from here."""

from orchestrator.models.attempts import Attempt, AttemptState, Checkpoint, ExitKind, Lease
from orchestrator.models.datasets import Dataset, DatasetRoot
from orchestrator.models.events import JobEvent
from orchestrator.models.jobs import (
    FINAL_STATES,
    LEASED_STATES,
    WAITING_STATES,
    Job,
    JobState,
    StopReason,
)
from orchestrator.models.outbox import Errand, Outbox, SchedulerTerm
from orchestrator.models.pools import AdminState, Device, Health, Network, Pool
from orchestrator.models.tokens import IdempotencyKey, Scope, Token

__all__ = [
    "FINAL_STATES",
    "LEASED_STATES",
    "WAITING_STATES",
    "AdminState",
    "Attempt",
    "AttemptState",
    "Checkpoint",
    "Dataset",
    "DatasetRoot",
    "Device",
    "Errand",
    "ExitKind",
    "Health",
    "IdempotencyKey",
    "Job",
    "JobEvent",
    "JobState",
    "Lease",
    "Network",
    "Outbox",
    "Pool",
    "SchedulerTerm",
    "Scope",
    "StopReason",
    "Token",
]
