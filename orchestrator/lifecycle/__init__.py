"""The job's state machine: every change of state goes through here, with its event, in one transaction."""

from orchestrator.lifecycle.ending import Ending
from orchestrator.lifecycle.endings import RETRIED_KINDS, back_to_queue, backoff_s, end, fail_waiting
from orchestrator.lifecycle.sight import lose_sight, regain_sight
from orchestrator.lifecycle.starting import FELL_TO_THE_BEGINNING, claim_launch, run, start
from orchestrator.lifecycle.transitions import (
    NEXT_STATES,
    IllegalTransition,
    StaleJob,
    announce,
    move,
    queue_errand,
    remark,
)
from orchestrator.lifecycle.wishes import (
    cancel,
    ended_words,
    hold,
    limit_memory,
    lose_device,
    preempt,
    release,
    shut_down,
    stop_by_policy,
    want_stop,
)

__all__ = [
    "FELL_TO_THE_BEGINNING",
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
    "ended_words",
    "fail_waiting",
    "hold",
    "limit_memory",
    "lose_device",
    "lose_sight",
    "move",
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
