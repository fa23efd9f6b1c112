"""What the events of a run tell people in the history of its job."""

import math
from collections.abc import Mapping
from typing import Any

from orchestrator.agent.run_values import storable_text
from orchestrator.facts.events import Happened
from orchestrator.facts.record import NOTHING, Fact, fact
from training.events import (
    CHECKPOINT_FAILED_EVENT,
    EVENT,
    FALLBACK_EVENT,
    PAUSED_EVENT,
    PROFILE_EVENT,
    PROFILE_FAILED_EVENT,
    RESUMED_EVENT,
    UNUSED_EVENT,
    WENT_ON_EVENT,
)

# Written for a script that reports nothing itself.
NOT_OF_THE_SCRIPT = frozenset({PROFILE_EVENT, PROFILE_FAILED_EVENT})
# By kind of event: what happened, and the event's names of its facts.
_TOLD_BY_RUNS: Mapping[str, tuple[Happened, Mapping[str, str]]] = {
    FALLBACK_EVENT: (
        Happened.RUN_FELL_BACK,
        {"from_step": "from_step", "to_step": "to_step", "why": "reason"},
    ),
    RESUMED_EVENT: (Happened.RUN_RESUMED, {"step": "step"}),
    CHECKPOINT_FAILED_EVENT: (Happened.RUN_CHECKPOINT_FAILED, {"step": "step", "why": "reason"}),
    PAUSED_EVENT: (Happened.RUN_PAUSED, {"step": "step", "failures": "failures", "why": "reason"}),
    WENT_ON_EVENT: (Happened.RUN_WENT_ON, {"step": "step", "paused_s": "paused_s"}),
    PROFILE_EVENT: (
        Happened.RUN_PROFILED,
        {
            name: name
            for name in (
                *("steps", "wall_s", "compute_s", "copy_s", "exchange_s", "data_s", "idle_s"),
                *("device", "trace"),
            )
        },
    ),
    PROFILE_FAILED_EVENT: (Happened.RUN_NOT_PROFILED, {"why": "reason"}),
    UNUSED_EVENT: (Happened.RUN_UNUSED_PARAMETERS, {"step": "step", "parameters": "parameters"}),
}


def fact_of(event: Mapping[str, Any]) -> Fact:
    """What an event of the run tells people; NOTHING for those that tell them nothing."""
    kind = event.get(EVENT)
    if not isinstance(kind, str) or kind not in _TOLD_BY_RUNS:
        return NOTHING
    code, names = _TOLD_BY_RUNS[kind]
    return fact(code, **{name: _of_run(event.get(theirs)) for name, theirs in names.items()})


def _of_run(value: object) -> int | float | str | None:
    """A value that a run wrote, as every database can keep it."""
    if value is None or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    return storable_text(str(value))
