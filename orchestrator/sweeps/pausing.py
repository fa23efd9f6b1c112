"""Pauses and resumes whole sweeps for a person; asking twice is harmless."""

from django.db import transaction

from orchestrator.exceptions import Conflict, Sentence
from orchestrator.facts.events import SweepFact
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.live import wakeups
from orchestrator.models import JobState, Sweep, SweepState, SweepTrial
from orchestrator.sweeps import observing
from orchestrator.sweeps.core.history import TrialState
from orchestrator.sweeps.core.rungs import Verdict, next_rung, verdict_at
from orchestrator.sweeps.ending import ACTOR, OPEN, open_trials, set_state
from orchestrator.sweeps.history_rows import history_of, rungs_of


def pause(sweep: Sweep, *, by: str) -> None:
    """Begin no trial any more: those that wait are held, those that run are paused at their next rung.

    A trial without a checkpoint trains on, since it would have to begin again.

    Raises:
        Conflict: the sweep has ended.
    """
    if sweep.has_ended:
        raise Conflict(
            Sentence("The sweep has {ended_as}, so there is nothing to pause.", ended_as=_ended_as(sweep))
        )
    why = fact(SweepFact.PAUSED_BY, by=by).as_json()
    Sweep.objects.filter(pk=sweep.pk, state=SweepState.RUNNING).update(state=SweepState.PAUSED, why=why)
    sweep.refresh_from_db()
    hold_waiting(sweep)
    wakeups.advance(sweep.pk)


def hold_waiting(sweep: Sweep) -> None:
    """Hold the trials of a paused sweep that have no devices; a second call does what a first one left."""
    for trial in open_trials(sweep, TrialState.RUNNING):
        if trial.job.state == JobState.QUEUED:
            try:
                lifecycle.pause(trial.job, by=ACTOR, why=fact(SweepFact.TRIAL_WAITS))
            except IllegalTransition:
                continue  # it started; it is paused at its next rung


def resume(sweep: Sweep) -> None:
    """Continue a paused sweep: release the trials that it held, and those that it paused although they led.

    Raises:
        Conflict: the sweep has ended.
    """
    if sweep.has_ended:
        raise Conflict(
            Sentence(
                "The sweep has {ended_as}; give it a larger budget, or begin another one.",
                ended_as=_ended_as(sweep),
            )
        )
    with transaction.atomic():
        paused = Sweep.objects.filter(pk=sweep.pk, state=SweepState.PAUSED)
        if paused.update(state=SweepState.RUNNING, why={}):
            for trial in open_trials(sweep, *OPEN):
                _continue(sweep, trial)
    sweep.refresh_from_db()
    wakeups.advance(sweep.pk)


def _continue(sweep: Sweep, trial: SweepTrial) -> None:
    if trial.job.is_final:
        return
    if trial.state == TrialState.PAUSED:
        rungs = rungs_of(sweep)
        able = observing.can_be_paused(sweep, trial.job)
        verdict = verdict_at(history_of(sweep), rungs, trial.number, trial.target or 0, can_resume=able)
        if verdict != Verdict.GO_ON:
            return  # it waits behind others, as it would have without the pause
        set_state(trial, TrialState.RUNNING, target=next_rung(rungs, trial.target or 0))
    if trial.job.state == JobState.HELD or trial.job.hold_wanted:
        lifecycle.release(trial.job, by=ACTOR)


def _ended_as(sweep: Sweep) -> Sentence:
    return Sentence({"stopped": "been stopped", "failed": "failed"}.get(sweep.state, "ended"))
