"""The submit form: text fields to a job's fields and back; the rules themselves are ``JobSpec``'s."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TRUE = "1"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form; ``name`` is the job's field it fills."""

    name: str
    label: str
    hint: str = ""
    kind: str = "text"  # text, number, lines, check
    placeholder: str = ""


MAIN = (
    Field("name", "Name", "Empty: the script's name."),
    Field("args", "Arguments", "As on a command line.", placeholder="--lr 3e-4"),
)
MORE = (
    Field("entrypoint", "Script to run", "Inside an archive.", placeholder="train.py"),
    Field("gpu_memory_gib", "Memory on each device, GiB", "Empty: the whole device.", "number"),
    Field("priority", "Priority", "0 to 100, higher first; above 60 is for operators.", "number"),
    Field("time_limit_h", "Time limit, hours", "Empty: none.", "number"),
    Field("max_retries", "Retries", "After failures that are not the script's.", "number"),
    Field(
        "total_steps",
        "Steps in all",
        "For progress and the expected end, where the script does not say.",
        "number",
    ),
    Field("memory_gib", "RAM, GiB", "Empty: no limit.", "number"),
    Field("cpus", "CPU cores", "Empty: a fair share.", "number"),
    Field(
        "resume_args",
        "Arguments to resume",
        "Added from the second attempt on.",
        placeholder="--resume {checkpoint}",
    ),
    Field(
        "checkpoint_glob",
        "Checkpoint files",
        "Where the script writes them elsewhere.",
        placeholder="out/*.pt",
    ),
    Field(
        "grace_period_s",
        "Time to save, seconds",
        "Between SIGTERM and SIGKILL. Empty: 30.",
        "number",
    ),
    Field("tags", "Tags", "Separated by commas."),
    Field("not_before", "Start not before", "UTC. Empty: at once.", placeholder="2026-11-22 07:00"),
    Field(
        "depends_on",
        "Start after",
        "Ids of jobs that must succeed first; any:ID for one that must only end.",
        placeholder="8c2f01d4 any:77b0e3aa",
    ),
    Field(
        "array",
        "Array",
        "Many jobs, each with its BERTH_ARRAY_INDEX; %2 runs two at once.",
        placeholder="0-9%2",
    ),
    Field("env", "Environment", "One NAME=value a line.", "lines"),
    Field(
        "preemptible",
        "May be paused for a more urgent job",
        "It resumes from its newest checkpoint.",
        "check",
    ),
)
FIELDS = (*MAIN, *MORE)
FRACTIONS = ("gpu_memory_gib", "memory_gib", "grace_period_s")
WHOLE_NUMBERS = frozenset({"gpus", "cpus", "priority", "max_retries", "total_steps"})
DEFAULT_GRACE_S = 30
DEFAULTS = {"priority": "50", "max_retries": "3", "gpus": "1"}
MOST_TEXT = 100_000
_ZONE = re.compile(r"([Zz]|[+-]\d\d:\d\d)$")
_WITHOUT_SECONDS = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", re.ASCII)
# The form asks for hours; its errors come back under the job's name for it.
FORM_NAMES = {"time_limit_s": "time_limit_h"}


def read_fields(
    posted: Mapping[str, str], datasets: list[str]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The job that a filled form describes, and what cannot be read, by field.

    What can be read but is against a rule is left to ``submission.parse_spec``.
    """
    job: dict[str, Any] = {"datasets": datasets} if datasets else {}
    errors: dict[str, list[str]] = {}
    for name in ("name", "entrypoint", "pool", "checkpoint_glob"):
        if text := posted.get(name, "").strip():
            job[name] = text
    for name in ("gpus", "cpus", "priority", "max_retries", "total_steps", *FRACTIONS):
        _read(job, errors, name, posted.get(name, ""), whole=name in WHOLE_NUMBERS)
    hours: dict[str, Any] = {}
    _read(hours, errors, "time_limit_h", posted.get("time_limit_h", ""), whole=False)
    if "time_limit_h" in hours:
        job["time_limit_s"] = hours["time_limit_h"] * 3600
    for name in ("args", "resume_args"):
        try:
            if words := shlex.split(posted.get(name, "")):
                job[name] = words
        except ValueError:
            errors[name] = ["A quotation mark is not closed; close it, or put a backslash before it."]
    if tags := [tag.strip() for tag in posted.get("tags", "").split(",") if tag.strip()]:
        job["tags"] = tags
    _read_start(job, posted)
    _read_env(job, errors, posted.get("env", ""))
    if posted.get("preemptible") == TRUE:
        job["preemptible"] = True
    return job, errors


def _read(job: dict[str, Any], errors: dict[str, list[str]], name: str, text: str, *, whole: bool) -> None:
    text = text.strip()
    if not text:
        return
    try:
        job[name] = int(text) if whole else float(text)
    except ValueError:
        errors[name] = [f"{text[:40]!r} is not a {'whole number' if whole else 'number'}."]


def _read_start(job: dict[str, Any], posted: Mapping[str, str]) -> None:
    """When it may start, and how often."""
    if moment := posted.get("not_before", "").strip():
        if _WITHOUT_SECONDS.fullmatch(moment):
            moment += ":00"
        job["not_before"] = moment if _ZONE.search(moment) else f"{moment}Z"
    if ids := posted.get("depends_on", "").replace(",", " ").split():
        job["depends_on"] = [
            {"job": each[4:], "when": "any"} if each.startswith("any:") else each for each in ids
        ]
    if array := posted.get("array", "").strip():
        job["array"] = array


def _read_env(job: dict[str, Any], errors: dict[str, list[str]], text: str) -> None:
    env: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            errors["env"] = [f"{line.strip()[:40]!r} has no =; write NAME=value."]
            return
        env[name.strip()] = value
    if env:
        job["env"] = env


def fields_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """The texts that a form shows for a job that is to be cloned; the other way round from ``read_fields``."""
    texts = {
        name: str(spec[name])
        for name in (
            "name",
            "entrypoint",
            "pool",
            "checkpoint_glob",
            "gpus",
            "cpus",
            "priority",
            "max_retries",
            "total_steps",
            "gpu_memory_gib",
            "memory_gib",
        )
        if spec.get(name) is not None
    }
    if spec.get("grace_period_s", DEFAULT_GRACE_S) != DEFAULT_GRACE_S:
        texts["grace_period_s"] = f"{spec['grace_period_s']:g}"
    for name in ("args", "resume_args"):
        texts[name] = shlex.join(spec.get(name) or [])
    texts["tags"] = ", ".join(spec.get("tags") or [])
    texts["env"] = "\n".join(f"{name}={value}" for name, value in (spec.get("env") or {}).items())
    texts["depends_on"] = " ".join(
        each if isinstance(each, str) else f"any:{each['job']}" for each in spec.get("depends_on") or []
    )
    texts["preemptible"] = TRUE if spec.get("preemptible") else ""
    if spec.get("time_limit_s"):
        texts["time_limit_h"] = f"{spec['time_limit_s'] / 3600:g}"
    return texts
