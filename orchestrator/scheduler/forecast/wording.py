"""Sentences about when a planned job would be done, with the requested and other numbers of devices."""

from datetime import datetime

from berth.shared import words
from berth.shared.command_lines import started_words
from berth.shared.language import plural_text, text
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
        return text(
            "When it would be done is not known: no run like it on {devices} has succeeded yet.",
            devices=_devices(asked),
        )
    end = _end(asked, asked.lasts, now)
    return f"{end[:1].upper()}{end[1:]}, {_by(asked.lasts, job)}."


def _tell_other(other: DeviceCountOption, asked: DeviceCountOption | None, now: datetime) -> str:
    """When the job would start with another number of devices and, if known, when it would be done."""
    said = f"{_devices(other)}: {_start(other, now)}"
    if other.lasts is None:
        return f"{said}, {text('duration unknown')}" if asked and asked.lasts else said
    said = f"{said}, {_end(other, other.lasts, now)}"
    if asked is None or asked.lasts is None:
        return said
    times = _middle(other.lasts) / _middle(asked.lasts)
    if times > WORTH_TELLING:
        return f"{said}, {text('runs {times:.1f} times as long', times=times)}"
    return (
        f"{said}, {text('runs {times:.1f} times as fast', times=1 / times)}"
        if 1 / times > WORTH_TELLING
        else said
    )


def _devices(outcome: DeviceCountOption) -> str:
    return words.plural(outcome.gpus, "device")


def _start(outcome: DeviceCountOption, now: datetime) -> str:
    if outcome.starts_now:
        return text("starts now")
    when = words.start_range(outcome.start_earliest, outcome.start_latest, now)
    return text("starts {when}", when=when) if when else text("when it starts is not known")


def _end(outcome: DeviceCountOption, lasts: ExpectedDuration, now: datetime) -> str:
    if when := words.start_range(outcome.end_earliest, outcome.end_latest, now):
        return text("done {when}", when=when)
    low, high = words.duration(lasts.low_s), words.duration(lasts.high_s)
    return text("runs {low} to {high}", low=low, high=high) if low != high else text("runs {time}", time=high)


def _by(lasts: ExpectedDuration, job: Job) -> str:
    same = lasts.like in {Like.CODE_AND_ARGUMENTS, Like.SCRIPT_AND_ARGUMENTS}
    like = text("with these arguments") if same else text("with other arguments")
    if lasts.like in {Like.CODE_AND_ARGUMENTS, Like.CODE}:
        return plural_text(
            "by {count:,} earlier run of this code {like}",
            "by {count:,} earlier runs of this code {like}",
            lasts.runs,
            like=like,
        )
    started = " ".join(started_words({**job.spec_fields, "args": []}))
    return plural_text(
        "by your {count:,} earlier run of {started} {like}",
        "by your {count:,} earlier runs of {started} {like}",
        lasts.runs,
        started=started,
        like=like,
    )


def _middle(lasts: ExpectedDuration) -> float:
    return (lasts.low_s + lasts.high_s) / 2
