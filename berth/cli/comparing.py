"""berth compare: how jobs differ in settings and results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from berth.cli.printing import safe
from berth.cli.tables import grid, job_line
from berth.client import Job, NotFound
from berth.shared import words
from berth.shared.arguments import by_name
from berth.shared.job_fields import BY_NAME, SETTINGS
from berth.shared.metric_names import in_order

SPLIT = frozenset({"args", "env"})  # a row for each of their entries
SMALL_CHANGE = 0.005  # of the first job's value; less is not worth a number


@dataclass(frozen=True, slots=True)
class Row:
    """One property of all jobs; ``values`` are numbers where the property has numbers."""

    name: str
    values: list[Any]
    texts: list[str]
    differs: bool


def compare(jobs: Sequence[Job]) -> list[Row]:
    """Compare settings, then results, with the first job as the baseline."""
    return [*_settings(jobs), *_results(jobs)]


def comparison_table(jobs: Sequence[Job], rows: Sequence[Row]) -> Table:
    table = grid("", *("value" for _ in jobs))
    for column, job in zip(table.columns[1:], jobs, strict=True):
        column.header = Text(job_line(job), "bold")
    for row in rows:
        table.add_row(Text(safe(row.name), "dim"), *(Text(safe(text)) for text in row.texts))
    return table


def rows_as_json(jobs: Sequence[Job], rows: Sequence[Row]) -> Mapping[str, object]:
    return {
        "jobs": [job.id for job in jobs],
        "rows": [{"name": row.name, "values": row.values, "differs": row.differs} for row in rows],
    }


def _settings(jobs: Sequence[Job]) -> list[Row]:
    names = [field.name for field in SETTINGS if field.name not in SPLIT]
    rows = [_row(name, [_setting(name, job.json.get(name)) for job in jobs]) for name in names]
    rows += _union("", [by_name(job.args) for job in jobs])
    rows += _union("env ", [job.env for job in jobs])
    installed = _union("package ", [_versions(job) for job in jobs])
    rows += [row for row in installed if row.differs]  # dozens are the same
    code = [str(job.json.get("bundle", ""))[:8] for job in jobs]
    return [*rows, _row("code", code)]


def _versions(job: Job) -> dict[str, str]:
    """The resolved packages of a job; empty with Berth's own."""
    if not (job.json.get("environment") or job.json.get("with_packages")):
        return {}
    try:
        packages = job.packages().packages
    except NotFound:  # a registered interpreter, or a server from before packages
        return {}
    return {package["name"]: package["version"] for package in packages}


def _setting(name: str, value: Any) -> Any:
    return BY_NAME[name].text(value) if isinstance(value, dict) else _plain(value)


def _results(jobs: Sequence[Job]) -> list[Row]:
    metrics = in_order({name: None for job in jobs for name in job.last_values})
    rates = [job.progress.steps_per_s for job in jobs]
    peaks = [job.attempt.peak_memory_bytes if job.attempt else None for job in jobs]
    return [
        _row("state", [job.state for job in jobs]),
        *(_numbers(name, [_last(job, name) for job in jobs], "value") for name in metrics),
        _numbers("steps", [job.progress.step for job in jobs], "value"),
        *([] if "steps_per_s" in metrics else [_numbers("steps_per_s", rates, "value")]),
        _numbers("run time", [job.run_s if job.started_at else None for job in jobs], "duration"),
        _numbers("device-hours", [_device_s(job) / 3600 for job in jobs], "value"),
        _numbers("peak memory", peaks, "size"),
        _row("attempts", [job.attempt_count for job in jobs]),
    ]


def _device_s(job: Job) -> float:
    """Sum run time times devices over the attempts, which may have had different numbers of devices."""
    ended = [each for each in job.attempts() if each.ended_at] if job.attempt_count > 1 else []
    going_s = job.run_s - sum(each.run_s for each in ended)
    return going_s * job.gpus + sum(each.run_s * len(each.devices) for each in ended)


def _last(job: Job, name: str) -> float | str | None:
    value = job.last_values.get(name)
    return job.nonfinite.get(name) if value is None else value


def _row(name: str, values: list[Any]) -> Row:
    texts = ["" if value is None else str(value) for value in values]
    return Row(name, values, texts, differs=len(set(texts)) > 1)


def _numbers(name: str, values: Sequence[float | str | None], unit: str) -> Row:
    """A row of numbers, each with its change from the first job's."""
    say = {"value": words.value, "duration": words.duration, "size": words.size}[unit]
    base = values[0]
    texts = []
    for value in values:
        if value is None or isinstance(value, str):
            texts.append(words.NOT_FINITE.get(value or "", ""))
            continue
        text = say(value)
        change = (value - base) / abs(base) if isinstance(base, int | float) and base else 0.0
        texts.append(f"{text} ({change:+.0%})" if abs(change) >= SMALL_CHANGE else text)
    return Row(name, list(values), texts, differs=len(set(texts)) > 1)


def _union(prefix: str, given: Sequence[Mapping[str, Any]]) -> list[Row]:
    names = list(dict.fromkeys(name for each in given for name in each))
    return [_row(f"{prefix}{name}", [_plain(each.get(name)) for each in given]) for name in names]


def _plain(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
