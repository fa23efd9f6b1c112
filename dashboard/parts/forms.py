"""The submit form: texts to a job's fields and back, by the table of fields; the rules are ``JobSpec``'s."""

import csv
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext

from berth.shared.arguments import WrongUse, duration_s
from berth.shared.field import UNITS_S, JobField, read_devices, written_duration, written_number, written_time
from berth.shared.job_fields import BY_NAME, FIELDS
from orchestrator.exceptions import Sentence
from orchestrator.jobs.submission import clones
from orchestrator.models import Job
from orchestrator.sentences.errors import sentence_of
from orchestrator.spec.job_spec import JobFields, JobSpec

TRUE, FALSE = "1", "0"
MAIN = tuple(field for field in FIELDS if field.form == "main")
MORE = tuple(field for field in FIELDS if field.form == "more")
DEFAULTS: Mapping[str, Any] = JobSpec().model_dump(mode="json")
FORM_NAMES = {field.name: field.form_name for field in FIELDS}  # where messages about a field stand
BY_FORM_NAME = {field.form_name: field for field in FIELDS}
MOST_TEXT = 100_000
GIT_FIELDS = ("url", "ref", "key")  # of the form; each has git_ before it
_ZONE = re.compile(r"([Zz]|[+-]\d\d:\d\d)$")
_WITHOUT_SECONDS = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", re.ASCII)
_LINE_END = re.compile(r"\r\n|\r|\n")
_QUOTED = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)  # as bash writes a text with line ends
_ESCAPES = {"n": "\n", "r": "\r"}


def label_of(field: JobField) -> str:
    """What a field's control is called, with the unit of its number."""
    return f"{gettext(field.label)}, {gettext(field.unit)}" if field.unit else gettext(field.label)


def shown_text(field: JobField, value: Any) -> str:
    """A value as pages show it: yes and no in the reader's language, all else as it was given."""
    text = field.text(value)
    return gettext(text) if field.kind in ("switch", "count") else text


def hint_of(field: JobField) -> str:
    """What the form says below a control, in the reader's language."""
    parts = [gettext(f"{field.help}."), field.how_to_type and gettext(field.how_to_type)]
    if field.empty:
        parts.append(gettext("Empty: {meaning}.").format(meaning=gettext(field.empty)))
    return " ".join(filter(None, parts))


class _Unreadable(Exception):
    """A text of the form that has no value; the message stands beside its field."""


def read_fields(posted: Mapping[str, str], datasets: list[str]) -> tuple[JobFields, dict[str, list[str]]]:
    """The job that a filled form describes, and what cannot be read, by the names of the form.

    What can be read but breaks a rule is left to ``intake.parse_spec``.
    """
    job: JobFields = {"datasets": datasets} if datasets else {}
    errors: dict[str, list[str]] = {}
    for field in FIELDS:
        text = posted.get(field.form_name, "")
        if field.name == "datasets" or not field.form or not text.strip():
            continue
        try:
            value = _read(field, text)
        except _Unreadable as error:
            errors[field.form_name] = [sentence_of(error)]
            continue
        if value not in ([], {}):
            job[field.name] = value
    return job, errors


def chosen_data(posted: QueryDict) -> list[str]:
    """The datasets that were chosen in a form, and the addresses that were written below them."""
    return [*posted.getlist("datasets"), *posted.get("addresses", "")[:MOST_TEXT].split()]


def read_source(posted: Mapping[str, str]) -> dict[str, str]:
    """The git repository that a form names; empty without one."""
    named = {name: posted.get(f"git_{name}", "").strip() for name in GIT_FIELDS}
    if not named["url"]:
        return {}
    return {"git": named.pop("url"), **{name: text for name, text in named.items() if text}}


def _read(field: JobField, text: str) -> Any:
    if len(text) > MOST_TEXT:
        raise _Unreadable(
            Sentence(
                "has more than {most_text:,} characters; use the command line or REST instead",
                most_text=MOST_TEXT,
            )
        )
    match field.kind:
        case "count" | "number":
            return _read_number(text.strip(), whole=field.kind == "count")
        case "devices":
            return read_devices(text.strip())
        case "duration":
            return _read_duration(text.strip(), field.unit)
        case "arguments":
            return _read_arguments(text)
        case "names":
            return names(text)
        case "lines":
            return [line.strip() for line in _LINE_END.split(text) if line.strip()]
        case "assignments":
            return _read_assignments(text)
        case "time":
            moment = text.strip()
            moment += ":00" if _WITHOUT_SECONDS.fullmatch(moment) else ""
            return moment if _ZONE.search(moment) else f"{moment}Z"
        case "jobs":
            ids = text.replace(",", " ").split()
            return [{"job": id_[4:], "when": "any"} if id_.startswith("any:") else id_ for id_ in ids]
        case "switch":
            return text == TRUE
    return text.strip()


def names(text: str) -> list[str]:
    """The names of a list with commas between them; one with a comma in it stands in quotation marks."""
    rows = csv.reader([_LINE_END.sub(" ", text)], skipinitialspace=True)
    return [name.strip() for row in rows for name in row if name.strip()]


def _read_number(text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise _Unreadable(
            Sentence(
                "{text!r} is not a whole number." if whole else "{text!r} is not a number.", text=text[:40]
            )
        ) from None


def _read_duration(text: str, unit: str) -> float:
    """A number in the unit of the field, or a duration as the command line takes it."""
    try:
        return float(text) * UNITS_S[unit]
    except ValueError:
        pass
    try:
        return duration_s(text)
    except WrongUse:
        raise _Unreadable(
            Sentence(
                "{text!r} is neither a number of {unit} nor a duration such as 1h30m or 90s.",
                text=text[:40],
                unit=unit,
            )
        ) from None


def _read_arguments(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\r\n", "\n"))  # browsers send line ends so
    except ValueError:
        raise _Unreadable("A quotation mark is not closed; close it, or put a backslash before it.") from None


def _read_assignments(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for line in filter(str.strip, _LINE_END.split(text)):
        name, equals, value = line.partition("=")
        if not equals:
            raise _Unreadable(Sentence("{line!r} has no =; write NAME=value.", line=line.strip()[:40]))
        values[name.strip()] = _unquoted(value)
    return values


def _unquoted(value: str) -> str:
    quoted = _QUOTED.fullmatch(value)
    if quoted is None:
        return value
    return re.sub(r"\\(.)", lambda hit: _ESCAPES.get(hit[1], hit[1]), quoted[1], flags=re.DOTALL)


def _quoted(value: str) -> str:
    """A value on one line: ``$'...'`` where it has line ends, or would be read as such a text."""
    if not _LINE_END.search(value) and not _QUOTED.fullmatch(value):
        return value
    escaped = re.sub(r"[\\']", r"\\\g<0>", value).replace("\n", r"\n").replace("\r", r"\r")
    return f"$'{escaped}'"


def texts_of(job: Job, *, shown: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The texts of a form that submits this job once more; of an array's member, that member alone.

    Args:
        shown: fields as the reader may see them, as ``rights.texts_of`` says.
    """
    spec: JobFields = {**DEFAULTS, **job.spec.model_dump(mode="json")}
    spec["env"] = clones.env_to_repeat(job)
    spec |= {name: list(texts) for name, texts in shown.items()}
    spec["array"] = None if job.array_index is None else str(job.array_index)
    texts = {field.form_name: write(field, spec[field.name]) for field in FIELDS if field.form}
    if job.checkout is not None and not job.bundle:  # its code never came
        texts |= {f"git_{name}": getattr(job.checkout, name) for name in GIT_FIELDS}
    return texts


def default_texts() -> dict[str, str]:
    """The texts of a form nobody has filled yet: a field that has an "empty" meaning stays empty."""
    shown = ("gpus", "pool", "priority", "max_retries")
    texts = {name: write(BY_NAME[name], DEFAULTS[name]) for name in shown}
    fixed = [field for field in FIELDS if field.kind in ("choice", "switch")]
    return texts | {field.form_name: write(field, DEFAULTS[field.name]) for field in fixed}


def placeholder(field: JobField) -> str:
    """An example of what to type; numbers need none."""
    return "" if field.kind in ("count", "number", "duration") else write(field, field.example)


def write(field: JobField, value: Any) -> str:
    """The text of a field's value as a form has it."""
    if value is None:
        return ""
    match field.kind:
        case "number":
            return written_number(value)
        case "duration":
            return written_duration(value, field.unit)
        case "arguments":
            return shlex.join(value)
        case "names":
            return ", ".join(map(_quoted_name, value))
        case "lines":
            return "\n".join(value)
        case "assignments":
            return "\n".join(f"{name}={_quoted(one)}" for name, one in value.items())
        case "time":
            return written_time(value)
        case "jobs":
            return " ".join(one if isinstance(one, str) else f"any:{one['job']}" for one in value)
        case "switch":
            return TRUE if value else FALSE
    return str(value)


def _quoted_name(name: str) -> str:
    """A name of a list with commas between its names."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow([name])
    return row.getvalue()
