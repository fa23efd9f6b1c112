"""Ends sweeps and their trials; asking twice is harmless."""

import logging
from collections.abc import Iterable
from uuid import UUID

from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone

from orchestrator.facts.events import SweepFact
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.models import Attempt, Job, Sweep, SweepState, SweepTrial
from orchestrator.people.usage import used_gpu_s
from orchestrator.sweeps.core.history import TrialState

logger = logging.getLogger(__name__)

ACTOR = "sweep"
OPEN = (TrialState.RUNNING, TrialState.PAUSED)


def stop(sweep: Sweep, *, by: str) -> None:
    """End a sweep for a person, with its open trials."""
    end(sweep, SweepState.STOPPED, fact(SweepFact.STOPPED_BY, by=by))
    close(sweep)


def end(sweep: Sweep, state: SweepState, why: Fact) -> None:
    """End a sweep that runs or is paused; the first reason stays."""
    ended = {"state": state, "why": why.as_json(), "ended_at": timezone.now()}
    open_states = (SweepState.RUNNING, SweepState.PAUSED)
    if Sweep.objects.filter(pk=sweep.pk, state__in=open_states).update(**ended, ends=F("ends") + 1):
        for name, value in ended.items():
            setattr(sweep, name, value)


def close(sweep: Sweep) -> None:
    """Stop the open trials of an ended sweep; a second call does what a first one that was killed left."""
    for trial in open_trials(sweep, *OPEN):
        with transaction.atomic():
            set_state(trial, TrialState.STOPPED)
            cancel(trial.job, fact(SweepFact.TRIAL_NOT_NEEDED))


def open_trials(sweep: Sweep, *states: TrialState) -> list[SweepTrial]:
    rows = SweepTrial.objects.filter(sweep=sweep, state__in=states).select_related("job")
    return list(rows.order_by("number"))


def cancel(job: Job, why: Fact) -> None:
    """Cancel the job of a trial, unless it has just ended by itself."""
    try:
        lifecycle.cancel(job, by=ACTOR, why=why)
    except IllegalTransition:
        logger.info("%s ended before its sweep stopped it.", job)


def set_state(trial: SweepTrial, state: TrialState, **changes: object) -> None:
    """Move a trial, with the time of its end where it ends."""
    if state not in OPEN:
        changes["ended_at"] = timezone.now()
    for name, value in {"state": str(state), **changes}.items():
        setattr(trial, name, value)
    trial.save(update_fields=["state", *changes])


def change(sweep: Sweep, **changes: object) -> None:
    for name, value in changes.items():
        setattr(sweep, name, value)
    sweep.save(update_fields=list(changes))


def used_device_s(sweep: Sweep) -> float:
    """The device time of all trials until now; half of a device counts half."""
    ended_s = SweepTrial.objects.filter(sweep=sweep).aggregate(sum=Sum("job__attained_gpu_s"))["sum"] or 0.0
    return float(ended_s) + sum(running_device_s(sweep).values())


def device_s_by_trial(sweep: Sweep) -> dict[int, float]:
    """The device time of each trial until now, by its number."""
    rows = SweepTrial.objects.filter(sweep=sweep).values_list("number", "job__attained_gpu_s")
    running_s = running_device_s(sweep)
    return {number: ended_s + running_s.get(number, 0.0) for number, ended_s in rows}


def running_device_s(sweep: Sweep) -> dict[int, float]:
    """The device time of the attempts that run, by the number of their trial."""
    return running_in([sweep])[sweep.pk]


def running_in(sweeps: Iterable[Sweep]) -> dict[UUID, dict[int, float]]:
    """The device time of the attempts that run, by sweep and by the number of their trial."""
    now = timezone.now()
    running: dict[UUID, dict[int, float]] = {sweep.pk: {} for sweep in sweeps}
    live = Attempt.objects.live().filter(job__trial__sweep__in=list(running), started_at__isnull=False)
    for attempt in live.select_related("job__trial"):
        if attempt.started_at is not None:
            trial, run_s = attempt.job.trial, max(0.0, (now - attempt.started_at).total_seconds())
            running[trial.sweep_id][trial.number] = used_gpu_s(attempt, run_s)
    return running
