"""The job's state machine: every change of state goes through here, with its event, in one transaction."""

from orchestrator.jobs.lifecycle.ending import Ending
from orchestrator.jobs.lifecycle.endings import RETRIED_KINDS, back_to_queue, backoff_s, end, fail_waiting
from orchestrator.jobs.lifecycle.last_seen import lose_sight, regain_sight
from orchestrator.jobs.lifecycle.requests import (
    cancel,
    give_memory_back,
    hold,
    limit_memory,
    lose_device,
    pause,
    preempt,
    release,
    shut_down,
    stop_by_policy,
    want_stop,
)
from orchestrator.jobs.lifecycle.starting import claim_launch, run, start
from orchestrator.jobs.lifecycle.transitions import (
    NEXT_STATES,
    IllegalTransition,
    StaleJob,
    announce,
    move,
    queue_errand,
    remark,
)

__all__ = [
    "NEXT_STATES",
    "RETRIED_KINDS",
    "Ending",
    "IllegalTransition",
    "StaleJob",
    "announce",
    "back_to_queue",
    "backoff_s",
    "cancel",
    "claim_launch",
    "end",
    "fail_waiting",
    "give_memory_back",
    "hold",
    "limit_memory",
    "lose_device",
    "lose_sight",
    "move",
    "pause",
    "preempt",
    "queue_errand",
    "regain_sight",
    "release",
    "remark",
    "run",
    "shut_down",
    "start",
    "stop_by_policy",
    "want_stop",
]
