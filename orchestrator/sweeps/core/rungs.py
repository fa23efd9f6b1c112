"""Rungs: the places at which a sweep compares its trials, and who goes on from there.

Asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning") that pauses
instead of killing. A trial in the best third of its rung goes on at once, since that costs nothing. Another one is
paused, and resumed when it comes to be in the best third and its next rung is worth the restart.
"""

from enum import StrEnum
from itertools import pairwise

from orchestrator.sweeps.core.history import History, TrialState

ETA = 3
SHARE_OF_FIRST = 18  # the first rung lies at this part of the whole training
LEAST_LAST_LEG = 1.5  # the last rung before the end leaves at least a third of the training


class Verdict(StrEnum):
    GO_ON = "go_on"
    PAUSE = "pause"
    STOP = "stop"


def rungs_for(longest: int, first: int | None = None) -> tuple[int, ...]:
    """The rungs of a training of ``longest`` units, ascending; the last one is its end.

    Args:
        first: the first rung; None chooses an eighteenth. Earlier values say little about the end.
    """
    rung = max(1, round(longest / SHARE_OF_FIRST)) if first is None else first
    rungs = []
    while rung * LEAST_LAST_LEG < longest:
        rungs.append(rung)
        rung *= ETA
    return (*rungs, longest)


def next_rung(rungs: tuple[int, ...], rung: int) -> int | None:
    """The rung after one; None after the last."""
    return next((other for other in rungs if other > rung), None)


def verdict_at(
    history: History, rungs: tuple[int, ...], trial: int, rung: int, *, can_resume: bool
) -> Verdict:
    """Whether a trial that reported at a rung goes on."""
    if next_rung(rungs, rung) is None:
        return Verdict.GO_ON
    values = history.at_rung(rung)
    value = values[trial]
    better = sum(other < value for other in values.values())
    if value < float("inf") and better < max(1, len(values) // ETA):
        return Verdict.GO_ON
    return Verdict.PAUSE if can_resume and value < float("inf") else Verdict.STOP


def resumable(history: History, rungs: tuple[int, ...], restart_cost: float = 0.0) -> tuple[int, int] | None:
    """The paused trial that is worth a free place, and the rung it trains to: the best of the highest rung.

    Args:
        restart_cost: of a resume, in units of the rungs. A leg that is shorter than this is not worth it.
    """
    for rung, target in reversed(list(pairwise(rungs))):
        if target - rung < restart_cost:
            continue
        values = history.at_rung(rung)
        # Sorting is stable: equal values resume in the order of their reports.
        for number in sorted(values, key=lambda trial: values[trial])[: len(values) // ETA]:
            trial = history.trials[number]
            waits_here = trial.state == TrialState.PAUSED and trial.target == rung
            if waits_here and values[number] < float("inf"):
                return number, target
    return None
