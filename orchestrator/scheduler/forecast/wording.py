"""When a planned job would be done, with as many devices as asked for and with others, in words."""

from datetime import datetime

from berth import words
from orchestrator.models import Job
from orchestrator.scheduler.forecast.device_counts import Outcome
from orchestrator.scheduler.forecast.durations import Lasting, Like
from orchestrator.scheduler.forecast.planning import Plan

WORTH_TELLING = 1.1  # times as long


def tell_outcomes(found: Plan) -> list[tuple[Outcome, str]]:
    """Each number of devices with what is said of it; the one that was asked for first, where it may ever start."""
    now = found.made_at
    asked = found.as_asked
    return [
        (each, _tell_end(each, found.job, now) if each is asked else _tell_other(each, asked, now))
        for each in found.outcomes
    ]


def _tell_end(asked: Outcome, job: Job, now: datetime) -> str:
    """When it would be done, and how that is known."""
    if asked.lasts is None:
        return f"When it would be done is not known: no run like it on {_devices(asked)} has succeeded yet."
    return f"{_end(asked, asked.lasts, now).capitalize()}, {_by(asked.lasts, job)}."


def _tell_other(other: Outcome, asked: Outcome | None, now: datetime) -> str:
    """When it would start with another number of devices, and where that is known when it would be done."""
    said = f"{_devices(other)}: {_start(other, now)}"
    if other.lasts is None:
        return f"{said}, how long it runs is not known" if asked and asked.lasts else said
    said = f"{said}, {_end(other, other.lasts, now)}"
    if asked is None or asked.lasts is None:
        return said
    times = _middle(other.lasts) / _middle(asked.lasts)
    if times > WORTH_TELLING:
        return f"{said}, runs {times:.1f} times as long"
    return f"{said}, runs {1 / times:.1f} times as fast" if 1 / times > WORTH_TELLING else said


def _devices(outcome: Outcome) -> str:
    return words.plural(outcome.gpus, "device")


def _start(outcome: Outcome, now: datetime) -> str:
    if outcome.starts_now:
        return "starts now"
    when = words.start_range(outcome.start_earliest, outcome.start_latest, now)
    return f"starts {when}" if when else "when it starts is not known"


def _end(outcome: Outcome, lasts: Lasting, now: datetime) -> str:
    if when := words.start_range(outcome.end_earliest, outcome.end_latest, now):
        return f"done {when}"
    low, high = words.duration(lasts.low_s), words.duration(lasts.high_s)
    return f"runs {low} to {high}" if low != high else f"runs {high}"


def _by(lasts: Lasting, job: Job) -> str:
    runs = words.plural(lasts.runs, "earlier run")
    same = lasts.like in {Like.CODE_AND_ARGUMENTS, Like.SCRIPT_AND_ARGUMENTS}
    like = f"with {'these' if same else 'other'} arguments"
    if lasts.like in {Like.CODE_AND_ARGUMENTS, Like.CODE}:
        return f"by {runs} of this code {like}"
    return f"by your {runs} of {job.spec_fields['entrypoint']} {like}"


def _middle(lasts: Lasting) -> float:
    return (lasts.low_s + lasts.high_s) / 2
