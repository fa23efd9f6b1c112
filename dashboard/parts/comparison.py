"""Differences between jobs: their settings and results, against a baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import mean, stdev
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark
from django.utils.translation import ngettext

from berth.shared import words
from berth.shared.arguments import by_name, number_or_text
from berth.shared.job_fields import SETTINGS
from berth.shared.language import text
from berth.shared.metric_names import in_loss_order, lower_is_better
from dashboard.parts.code_changes import versions
from dashboard.parts.forms import shown_text
from dashboard.parts.rows import main_loss, recorded
from orchestrator.models import Attempt, Job, JobState
from orchestrator.people import rights

SPLIT = frozenset({"args", "env"})  # a row for each of their entries
MOST_METRICS = 40
MANY_TIMES = 10  # above this, "12 times" says more than a percentage
ONE_RUN = mark("1 run, no spread")
OWN_ROWS = frozenset(
    {
        mark("state"),
        mark("code"),
        mark("steps done"),
        mark("s/step"),
        mark("peak memory a device"),
        mark("run time"),
        mark("device-hours"),
        mark("attempts"),
        mark("spread"),
    }
)
SMALL_CHANGE = 0.005  # of the baseline; less is not worth a number


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    change: str = ""  # against the baseline: +12 %
    same: bool = False  # as the baseline
    best: bool = False  # of all, where the name of the row says which way is better


@dataclass(frozen=True, slots=True)
class Row:
    """One property of all jobs, in column order."""

    name: str
    cells: list[Cell]
    differs: bool
    note: str = ""
    numbers: Sequence[float | None] = ()  # what the row sorts by; texts where it has none

    @property
    def title(self) -> str:
        """The name in the reader's language; settings, arguments and metrics are named as programs name them."""
        return _(self.name) if self.name in OWN_ROWS else self.name


def compare(
    jobs: Sequence[Job],
    attempts: Mapping[Any, Sequence[Attempt]],
    *,
    baseline: int,
    reader_id: int | None,
    now: datetime,
) -> list[Row]:
    """Settings first, then results.

    Args:
        attempts: each job's attempts, by job id.
        baseline: index of the job that the others are compared with.
        reader_id: environment values are shown only for this person's jobs.
    """
    rows = [*_settings(jobs, baseline, reader_id), *_results(jobs, attempts, baseline, now)]
    return [row for row in rows if any(cell.text for cell in row.cells)]


def settings_that_differ(before: Job, after: Job, reader_id: int | None) -> list[Row]:
    """The settings, arguments, variables and packages of two jobs that are not the same; code apart."""
    rows = _settings([before, after], 0, reader_id)
    return [row for row in rows if row.differs and row.name != "code"]


def _settings(jobs: Sequence[Job], baseline: int, reader_id: int | None) -> list[Row]:
    specs = [{**job.spec.model_dump(mode="json"), **rights.texts_of(job, reader_id)} for job in jobs]
    rows = [
        _texts(field.name, [shown_text(field, spec[field.name]) for spec in specs], baseline)
        for field in SETTINGS
        if field.name not in SPLIT
    ]
    rows += _union("", [by_name(rights.texts_of(job, reader_id)["args"]) for job in jobs], baseline)
    environments = [rights.environment_of(job, reader_id, "…") for job in jobs]
    rows += _union("env ", environments, baseline)
    installed = _union("package ", [versions(job) for job in jobs], baseline)
    rows += [row for row in installed if row.differs]  # dozens are the same
    return [*rows, _texts("code", [job.bundle[:8] for job in jobs], baseline)]


def _results(
    jobs: Sequence[Job], attempts: Mapping[Any, Sequence[Attempt]], baseline: int, now: datetime
) -> list[Row]:
    run_s = [run_s_of(job, attempts.get(job.pk, []), now) for job in jobs]
    device_s = [device_s_of(job, attempts.get(job.pk, []), now) for job in jobs]
    peaks = [
        max(
            (each.peak_memory_bytes for each in attempts.get(job.pk, []) if each.peak_memory_bytes),
            default=None,
        )
        for job in jobs
    ]
    step_s = [1 / job.steps_per_s if job.steps_per_s else None for job in jobs]
    return [
        _texts("state", [text(job.state.replace("_", " ")) for job in jobs], baseline),
        *(
            _numbers(
                name,
                [recorded(job.last_values.get(name)) for job in jobs],
                baseline,
                note=_note(name),
                lower=lower_is_better(name),
            )
            for name in _metrics(jobs)
        ),
        _numbers("steps done", [job.step for job in jobs], baseline),
        _numbers("s/step", step_s, baseline, note=_("lower is better"), lower=True),
        _numbers("peak memory a device", peaks, baseline, unit="size"),
        _numbers("run time", run_s, baseline, unit="duration"),
        _numbers(
            "device-hours",
            [None if held_s is None else held_s / 3600 for held_s in device_s],
            baseline,
        ),
        _texts("attempts", [str(job.attempt_count or "") for job in jobs], baseline),
        _spread(jobs),
    ]


def _spread(jobs: Sequence[Job]) -> Row:
    """Spread over each job's array; always shown, since it says how far to trust the other rows."""
    cells = [Cell(spread_over_array(job)) for job in jobs]
    return Row("spread", cells, differs=True, note=_("loss, mean ± standard deviation"))


def spread_over_array(job: Job) -> str:
    """Mean and spread of the main loss over the array's successful members; a rerun member counts once."""
    if job.array_id is None:
        return _(ONE_RUN)
    ended = Job.objects.filter(array_id=job.array_id, state=JobState.SUCCEEDED).order_by("pk")
    newest = {index: main_loss(values) for index, values in ended.values_list("array_index", "last_values")}
    losses = [loss[1] for loss in newest.values() if loss and math.isfinite(loss[1])]
    if len(losses) < 2:
        said = ngettext(
            "{n} run of its array ended, no spread", "{n} runs of its array ended, no spread", len(losses)
        )
        return said.format(n=len(losses))
    around = f"{words.value(mean(losses))} ± {stdev(losses):.2g}"
    return _("{mean} over {n} runs").format(mean=around, n=len(losses))


def _metrics(jobs: Sequence[Job]) -> list[str]:
    """Names of last values, losses first."""
    names = {name for job in jobs for name in job.last_values}
    losses = in_loss_order(names)
    return [*losses, *sorted(names.difference(losses))][:MOST_METRICS]


def run_s_of(job: Job, attempts: Sequence[Attempt], now: datetime) -> float | None:
    going = sum(
        (now - each.started_at).total_seconds() for each in attempts if each.started_at and not each.ended_at
    )
    return job.seconds_run + going if job.first_started_at else None


def device_s_of(job: Job, attempts: Sequence[Attempt], now: datetime) -> float | None:
    """Run time times devices, per attempt: attempts may have held different numbers of devices."""
    ran_s = run_s_of(job, attempts, now)
    if ran_s is None:
        return None
    ended = [each for each in attempts if each.ended_at]
    going_s = ran_s - sum(each.run_s for each in ended)
    return going_s * job.gpus + sum(each.run_s * len(each.leases.all()) for each in ended)


def _texts(name: str, texts: Sequence[str], baseline: int) -> Row:
    cells = [
        Cell(text, same=bool(text) and at != baseline and text == texts[baseline])
        for at, text in enumerate(texts)
    ]
    return Row(name, cells, differs=len(set(texts)) > 1)


def _note(name: str) -> str:
    lower = lower_is_better(name)
    if lower is None:
        return _("last value")
    return _("lower is better") if lower else _("higher is better")


def _numbers(
    name: str,
    values: Sequence[float | None],
    baseline: int,
    *,
    unit: str = "value",
    note: str = "",
    lower: bool | None = None,
) -> Row:
    say = {"value": words.value, "duration": words.duration, "size": words.size}[unit]
    base = values[baseline]
    best = _best(values, lower=lower)
    cells = [
        Cell(
            "" if value is None else say(value),
            "" if at == baseline else _change(value, base),
            best=best is not None and value == best,
        )
        for at, value in enumerate(values)
    ]
    differs = len({str(value) for value in values}) > 1  # as text: NaN equals nothing
    return Row(name, cells, differs, note, values)


def _best(values: Sequence[float | None], *, lower: bool | None) -> float | None:
    """The best number, where the numbers differ and one way is better."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if lower is None or len(set(known)) < 2:
        return None
    return min(known) if lower else max(known)


def order(rows: Sequence[Row], name: str, *, down: bool) -> list[int] | None:
    """Places of the jobs, sorted by a row; jobs without a value come last. None: there is no such row."""
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        return None
    keys: list[float | str | None] = [
        None if number is None or not math.isfinite(number) else number for number in row.numbers
    ] or [_sortable(cell.text) for cell in row.cells]
    known = [at for at, key in enumerate(keys) if key is not None]
    known.sort(key=lambda at: (isinstance(keys[at], str), keys[at]), reverse=down)
    return [*known, *(at for at, key in enumerate(keys) if key is None)]


def _sortable(text: str) -> float | str | None:
    return number_or_text(text) if text else None


def _change(value: float | None, base: float | None) -> str:
    if value is None or not base or not math.isfinite(value / base):
        return ""
    if value / base >= MANY_TIMES:
        return _("{n} times").format(n=words.value(round(value / base)))
    change = (value - base) / abs(base)
    return f"{change:+.0%}".replace("%", " %") if abs(change) >= SMALL_CHANGE else ""


def _union(prefix: str, given: Sequence[Mapping[str, Any]], baseline: int) -> list[Row]:
    names = list(dict.fromkeys(name for each in given for name in each))
    return [_texts(f"{prefix}{name}", [_plain(each.get(name)) for each in given], baseline) for name in names]


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
