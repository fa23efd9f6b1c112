"""Advances sweeps: reads what their trials reported, pauses, resumes and stops trials, and submits new ones.

Everything is derived from rows. Each step is one transaction that may be repeated: a trial and its job are created
together, a rung is reported once (a unique row), and orders to jobs are harmless when repeated.
"""

import logging
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from orchestrator.exceptions import DevicesAway, OrchestratorError, TooMany, Unavailable
from orchestrator.facts.events import SweepFact
from orchestrator.facts.record import NOTHING, Fact, Facts, fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.background import locked
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.jobs.submission import intake
from orchestrator.live import wakeups
from orchestrator.models import Job, JobState, RungReport, Sweep, SweepState, SweepTrial
from orchestrator.sweeps import observing, pausing
from orchestrator.sweeps.core.gain import expected_gain
from orchestrator.sweeps.core.history import TrialState
from orchestrator.sweeps.core.rungs import Verdict, next_rung, resumable, verdict_at
from orchestrator.sweeps.core.space import Settings
from orchestrator.sweeps.core.suggest import suggest
from orchestrator.sweeps.ending import (
    ACTOR,
    OPEN,
    cancel,
    change,
    close,
    device_s_by_trial,
    end,
    open_trials,
    set_state,
    used_device_s,
)
from orchestrator.sweeps.handing_over import spec_of
from orchestrator.sweeps.history_rows import gain_of, history_of, metrics_of, rungs_of, search_of

logger = logging.getLogger(__name__)

SAME_ERRORS = 3
# Trials with different errors; a machine rarely fails so often in a row for different reasons.
LOST_IN_A_ROW = 10
# Then it goes behind the worker's other tasks: trials may report faster than they are looked at.
LOOKS_AT_ONCE = 2
MOST_CHARACTERS = 500  # of an unexpected error


def advance(sweep_id: UUID) -> bool:
    """Bring one sweep up to date with its jobs.

    Returns:
        False where another process is just doing this; it then looks once more, for what this call was made for.
    """
    folder = settings.HOME.root / "sweeps"
    folder.mkdir(exist_ok=True)
    asked = folder / f"{sweep_id}.asked"
    asked.touch()
    for _ in range(LOOKS_AT_ONCE):
        # Unique rows guard what must not happen twice.
        with locked(folder / f"{sweep_id}.lock") as alone:
            if not alone:
                return False
            asked.unlink(missing_ok=True)  # before the rows are read: later requests are handled later
            _advance(sweep_id)
        if not asked.exists():
            return True
    wakeups.advance(sweep_id)
    return True


def _advance(sweep_id: UUID) -> None:
    sweep = Sweep.objects.select_related("owner").get(pk=sweep_id)
    for trial in open_trials(sweep, *OPEN):
        if trial.state == TrialState.PAUSED:
            if not trial.job.is_final and (trial.job.state == JobState.HELD or trial.job.hold_wanted):
                continue
            # It ended in the moment in which it was to stop, or a person released its job.
            set_state(trial, TrialState.RUNNING, target=next_rung(rungs_of(sweep), trial.target or 0))
        _observe(sweep, trial)
    if sweep.state == SweepState.RUNNING:
        _begin_and_resume(sweep)
    if sweep.state == SweepState.PAUSED:
        pausing.hold_waiting(sweep)  # trials that lost their devices in between
    if sweep.has_ended:
        close(sweep)
    Sweep.objects.filter(pk=sweep.pk).update(advanced_at=timezone.now())


# What a trial reported


def _observe(sweep: Sweep, trial: SweepTrial) -> None:
    """Take what a trial reported since the last look, and decide on it at each rung that it reached."""
    job = trial.job
    if sweep.can_resume is None and observing.began_again(job):
        change(sweep, can_resume=False)
    curve, *others = observing.curves_of(sweep, job)
    if job.state == JobState.SUCCEEDED and sweep.longest is None and curve.last_step is not None:
        change(sweep, longest=observing.length_of(job, curve.last_step))
    for rung in _reached(sweep, trial, [curve, *others]):
        further = [one.value_at(rung, sweep.window) for one in others]
        if not _tell(sweep, trial, rung, curve.value_at(rung, sweep.window), further):
            return
    if job.is_final:
        _take_end(sweep, trial, [curve, *others])


def _reached(sweep: Sweep, trial: SweepTrial, curves: list[observing.Curve]) -> list[int]:
    """The rungs that a trial has reached and not yet told; a whole training that was shorter counts for its end.

    While it trains, all its metrics have to be there: some scripts report one of them after the last step.
    """
    steps = [curve.last_step for curve in (curves[:1] if trial.job.is_final else curves)]
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return []
    told = set(RungReport.objects.filter(trial=trial).values_list("rung", flat=True))
    is_whole = trial.job.state == JobState.SUCCEEDED
    return [rung for rung in rungs_of(sweep) if rung not in told and (is_whole or min(known) >= rung)]


def _tell(
    sweep: Sweep, trial: SweepTrial, rung: int, value: float | None, further: list[float | None]
) -> bool:
    """Write a report, and decide on it in the same transaction; False where the trial does not go on."""
    with transaction.atomic():
        RungReport.objects.create(trial=trial, rung=rung, value=value, further=further)
        rungs = rungs_of(sweep)
        if trial.job.is_final:
            return True
        able = observing.can_be_paused(sweep, trial.job)
        verdict = verdict_at(history_of(sweep), rungs, trial.number, rung, can_resume=able)
        why = fact(SweepFact.TRIAL_PAUSED, rung=rung)
        if verdict == Verdict.GO_ON and sweep.state == SweepState.PAUSED and able and next_rung(rungs, rung):
            verdict, why = Verdict.PAUSE, fact(SweepFact.TRIAL_WAITS)
        if verdict == Verdict.GO_ON:
            set_state(trial, TrialState.RUNNING, target=next_rung(rungs, rung))
        elif verdict == Verdict.PAUSE:
            lifecycle.pause(trial.job, by=ACTOR, why=why)
            set_state(trial, TrialState.PAUSED, target=rung)
        else:
            set_state(trial, TrialState.STOPPED, target=rung)
            cancel(trial.job, fact(SweepFact.TRIAL_STOPPED, rung=rung))
    return verdict == Verdict.GO_ON


def _take_end(sweep: Sweep, trial: SweepTrial, curves: list[observing.Curve]) -> None:
    """Take the end of a trial's job: a result, a failure that is one, or nothing where the machine failed."""
    job = trial.job
    named = zip(metrics_of(sweep), curves, strict=True)
    missing = next((metric.name for metric, curve in named if curve.last_step is None), None)
    if job.state == JobState.SUCCEEDED and missing is None:
        set_state(trial, TrialState.ENDED)
    elif job.state == JobState.SUCCEEDED:
        _fail(sweep, trial, f"It reported no {missing}.")
        _stop_without_metric(sweep, trial, missing)
    elif observing.failed_by_itself(job):
        _fail(sweep, trial, observing.error_of(job))
        _stop_on_same_errors(sweep)
    elif job.state == JobState.FAILED:
        set_state(trial, TrialState.STOPPED, lost=True, error=observing.error_of(job))
        _stop_on_same_errors(sweep)
        _stop_on_lost_trials(sweep)
    elif job.state == JobState.TIMED_OUT:  # its values count; some trainings end by their time
        set_state(trial, TrialState.STOPPED, error=observing.error_of(job))
        if not RungReport.objects.filter(trial__sweep=sweep, value__isnull=False).exists():
            _stop_on_same_errors(sweep)
    else:
        set_state(trial, TrialState.STOPPED)


def _stop_without_metric(sweep: Sweep, trial: SweepTrial, metric: str | None) -> None:
    """End a sweep in which no trial has reported all its metrics, not even one that trains to its first rung."""
    reports = RungReport.objects.filter(trial__sweep=sweep, value__isnull=False)
    if all(None in further for further in reports.values_list("further", flat=True)):
        if any(observing.has_reported(sweep, other.job) for other in open_trials(sweep, *OPEN)):
            return
        names = observing.metric_names(trial.job)
        why = fact(SweepFact.METRIC_MISSING, metric=metric, trial=trial.number, names=names)
        end(sweep, SweepState.FAILED, why)


def _fail(sweep: Sweep, trial: SweepTrial, error: str) -> None:
    """A trial that failed by itself counts as the worst value of the next rung that it did not reach."""
    with transaction.atomic():
        told = RungReport.objects.filter(trial=trial).values_list("rung", flat=True)
        rung = next_rung(rungs_of(sweep), max(told, default=0)) or 1
        if rung not in told:
            RungReport.objects.create(trial=trial, rung=rung, value=None)
        set_state(trial, TrialState.FAILED, error=error)


def _newest_ended(sweep: Sweep, count: int) -> list[SweepTrial]:
    ended = SweepTrial.objects.filter(sweep=sweep).exclude(state__in=OPEN)
    return list(ended.order_by("-ended_at", "-number")[:count])


def _stop_on_same_errors(sweep: Sweep) -> None:
    newest = _newest_ended(sweep, SAME_ERRORS)
    if len(newest) < SAME_ERRORS or not all(trial.error for trial in newest):
        return
    if all(observing.same_error(newest[0].error, trial.error) for trial in newest[1:]):
        why = fact(SweepFact.SAME_ERROR, times=SAME_ERRORS, error=newest[0].error)
        end(sweep, SweepState.FAILED, why)


def _stop_on_lost_trials(sweep: Sweep) -> None:
    """End a sweep whose trials the machine takes one after another: lost trials cost nothing, so no budget ends it."""
    newest = _newest_ended(sweep, LOST_IN_A_ROW)
    if len(newest) == LOST_IN_A_ROW and all(trial.lost for trial in newest):
        why = fact(SweepFact.TRIALS_LOST, times=LOST_IN_A_ROW, error=newest[0].error)
        end(sweep, SweepState.FAILED, why)


# What happens next


def _begin_and_resume(sweep: Sweep) -> None:
    """Fill the free places: resume a paused trial that is worth it, else begin a new one, else end the sweep."""
    if sweep.max_device_s is not None and (used_s := used_device_s(sweep)) >= sweep.max_device_s:
        ended = SweepTrial.objects.filter(sweep=sweep, state=TrialState.ENDED).count()
        end(sweep, SweepState.ENDED, fact(SweepFact.DEVICE_TIME_SPENT, used_s=used_s, ended=ended))
        return
    if (gain := _too_little_to_gain(sweep)) is not None:
        end(sweep, SweepState.ENDED, gain)
        return
    while _has_place(sweep):
        if not _resume_one(sweep) and not _begin_one(sweep):
            break


def _too_little_to_gain(sweep: Sweep) -> Fact | None:
    """Why a sweep with a rule for its gain ends now; None where it goes on."""
    if sweep.least_gain is None or sweep.gain_device_s is None:
        return None
    gain = expected_gain(gain_of(sweep, device_s_by_trial(sweep)), sweep.gain_device_s)
    if gain is None or gain >= sweep.least_gain:
        return None
    names = {"metric": sweep.metric, "more_s": sweep.gain_device_s}
    return fact(SweepFact.LITTLE_TO_GAIN, gain=gain, least=sweep.least_gain, **names)


def _has_place(sweep: Sweep) -> bool:
    """Whether a further trial may ask for devices: beyond the least width only while none waits for them."""
    running = open_trials(sweep, TrialState.RUNNING)
    if sweep.state != SweepState.RUNNING or len(running) >= sweep.max_width:
        return False
    waiting = sum(trial.job.state == JobState.QUEUED for trial in running)
    return waiting == 0 or len(running) < sweep.min_width


def _resume_one(sweep: Sweep) -> bool:
    found = resumable(history_of(sweep), rungs_of(sweep), observing.restart_cost_steps(sweep))
    if found is None or sweep.can_resume is False:
        return False
    number, target = found
    trial = SweepTrial.objects.select_related("job").get(sweep=sweep, number=number)
    try:
        with transaction.atomic():
            set_state(trial, TrialState.RUNNING, target=target)
            lifecycle.release(trial.job, by=ACTOR)
    except IllegalTransition:  # a person cancelled it
        set_state(trial, TrialState.STOPPED)
    return True


def _begin_one(sweep: Sweep) -> bool:
    """Submit the next trial; False without another, which ends the sweep once its trials have ended."""
    trials = SweepTrial.objects.filter(sweep=sweep)
    counted = trials.filter(lost=False).count()
    if sweep.max_trials is not None and counted >= sweep.max_trials:
        _end_when_idle(sweep, fact(SweepFact.TRIALS_SPENT, trials=sweep.max_trials))
        return False
    number = trials.count()
    search, history = search_of(sweep), history_of(sweep)
    try:
        suggested = suggest(search, history, number)
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_CHARACTERS]
        if _note(sweep, fact(SweepFact.SAMPLER_FAILED, sampler=sweep.sampler, trial=number, problem=problem)):
            logger.exception("The sampler of %s failed at trial %d.", sweep, number)
        return False
    if suggested is None:
        _end_when_idle(sweep, fact(SweepFact.SPACE_TRIED, points=counted))
        return False
    return _submit(sweep, number, suggested)


def _submit(sweep: Sweep, number: int, suggested: Settings) -> bool:
    """Create a trial and its job in one transaction."""
    rungs = rungs_of(sweep)

    def write(job: Job) -> None:
        SweepTrial.objects.create(
            sweep=sweep,
            number=number,
            settings=dict(suggested),
            job=job,
            state=TrialState.RUNNING,
            target=rungs[0] if rungs else None,
            created_at=job.submitted_at,
        )

    try:
        spec = spec_of(sweep, number, suggested)
        intake.accept(sweep.owner, spec, uploaded=sweep.bundle, beside=write, continues=True)
    except (TooMany, Unavailable, DevicesAway) as error:  # later there may be room, a disk or devices
        _note(sweep, fact(SweepFact.CANNOT_SUBMIT, problem=str(error)))
        return False
    except IntegrityError:
        logger.warning("%s has its trial %d already; another process was first.", sweep, number)
        return False
    except OrchestratorError as error:
        end(sweep, SweepState.FAILED, fact(SweepFact.CANNOT_SUBMIT, problem=str(error)))
        return False
    _note(sweep, NOTHING)
    return True


def _note(sweep: Sweep, why: Fact) -> bool:
    """Say beside a running sweep what its next trial waits for; False where that stands there already."""
    stored: Facts = {**why.as_json()} if why else {}
    if sweep.why == stored:
        return False
    rows = Sweep.objects.filter(pk=sweep.pk, state=SweepState.RUNNING)  # not what a pause in between says
    sweep.why = stored if rows.update(why=stored) else sweep.why
    return True


def _end_when_idle(sweep: Sweep, why: Fact) -> None:
    if not open_trials(sweep, TrialState.RUNNING):
        end(sweep, SweepState.ENDED, why)
