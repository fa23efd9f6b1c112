"""Sentences about when a planned job would be done, with the requested and other numbers of devices."""

from datetime import datetime

from berth import words
from berth.job_fields import started_words
from orchestrator.models import Job
from orchestrator.scheduler.forecast.device_counts import DeviceCountOption
from orchestrator.scheduler.forecast.durations import ExpectedDuration, Like
from orchestrator.scheduler.forecast.planning import SubmitPreview

WORTH_TELLING = 1.1  # times as long


def tell_outcomes(preview: SubmitPreview) -> list[tuple[DeviceCountOption, str]]:
    """Each option with its sentence; the requested number of devices first if the job could ever start with it."""
    now = preview.made_at
    asked = preview.as_asked
    return [
        (option, _tell_end(option, preview.job, now) if option is asked else _tell_other(option, asked, now))
        for option in preview.outcomes
    ]


def _tell_end(asked: DeviceCountOption, job: Job, now: datetime) -> str:
    """When the job would be done, and where that estimate comes from."""
    if asked.lasts is None:
        return f"When it would be done is not known: no run like it on {_devices(asked)} has succeeded yet."
    return f"{_end(asked, asked.lasts, now).capitalize()}, {_by(asked.lasts, job)}."


def _tell_other(other: DeviceCountOption, asked: DeviceCountOption | None, now: datetime) -> str:
    """When the job would start with another number of devices and, if known, when it would be done."""
    text = f"{_devices(other)}: {_start(other, now)}"
    if other.lasts is None:
        return f"{text}, duration unknown" if asked and asked.lasts else text
    text = f"{text}, {_end(other, other.lasts, now)}"
    if asked is None or asked.lasts is None:
        return text
    times = _middle(other.lasts) / _middle(asked.lasts)
    if times > WORTH_TELLING:
        return f"{text}, runs {times:.1f} times as long"
    return f"{text}, runs {1 / times:.1f} times as fast" if 1 / times > WORTH_TELLING else text


def _devices(outcome: DeviceCountOption) -> str:
    return words.plural(outcome.gpus, "device")


def _start(outcome: DeviceCountOption, now: datetime) -> str:
    if outcome.starts_now:
        return "starts now"
    when = words.start_range(outcome.start_earliest, outcome.start_latest, now)
    return f"starts {when}" if when else "when it starts is not known"


def _end(outcome: DeviceCountOption, lasts: ExpectedDuration, now: datetime) -> str:
    if when := words.start_range(outcome.end_earliest, outcome.end_latest, now):
        return f"done {when}"
    low, high = words.duration(lasts.low_s), words.duration(lasts.high_s)
    return f"runs {low} to {high}" if low != high else f"runs {high}"


def _by(lasts: ExpectedDuration, job: Job) -> str:
    runs = words.plural(lasts.runs, "earlier run")
    same = lasts.like in {Like.CODE_AND_ARGUMENTS, Like.SCRIPT_AND_ARGUMENTS}
    like = f"with {'these' if same else 'other'} arguments"
    if lasts.like in {Like.CODE_AND_ARGUMENTS, Like.CODE}:
        return f"by {runs} of this code {like}"
    started = started_words({**job.spec_fields, "args": []})
    return f"by your {runs} of {' '.join(started)} {like}"


def _middle(lasts: ExpectedDuration) -> float:
    return (lasts.low_s + lasts.high_s) / 2
