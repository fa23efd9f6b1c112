"""What the form of a service asks for: its rules, and the fields of its replicas' job that make sense for it."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from berth.shared.arguments import WrongUse, duration_s
from berth.shared.field import JobField
from berth.shared.job_fields import FIELDS
from dashboard.parts import forms
from orchestrator.api.http.reading import JsonObject
from orchestrator.models import Service
from orchestrator.services import asking
from orchestrator.services.creation import is_kept
from orchestrator.spec.job_spec import JobFields

RULES = (
    JobField(
        "min_replicas",
        "Replicas without requests",
        "Replicas that run also when nobody asks",
        1,
        "count",
        empty="0, it sleeps",
    ),
    JobField(
        "max_replicas",
        "Replicas at most",
        "As many as the busiest moment needs, up to this",
        4,
        "count",
        empty="1",
    ),
    JobField(
        "idle_s",
        "Asleep after",
        "Time without a request",
        600,
        "duration",
        "seconds",
        empty="10 minutes",
    ),
    JobField(
        "deadline_s",
        "Deadline",
        "Time in which a request is answered, or refused",
        2,
        "duration",
        "seconds",
        empty="30 seconds",
    ),
    JobField("parallel", "Requests at once", "That one replica answers together", 8, "count", empty="1"),
    JobField(
        "health_path",
        "Health path",
        "Answers 2xx once a replica is ready",
        "/health",
        empty="ready once it takes connections",
    ),
)
_MAIN = ("command", "gpu_memory_gib", "with_packages", "environment")
_MORE = (
    "workdir",
    "env",
    "secrets",
    "python",
    "gpu_memory_limit_gib",
    "cpus",
    "memory_gib",
    "priority",
    "tags",
    "grace_period_s",
    "visibility",
)
_WORDS: dict[str, dict[str, Any]] = {
    "command": {
        "help": "Program that listens on BERTH_SOCKET",
        "example": ["python", "serve.py"],
        "empty": "",
    },
    "gpu_memory_gib": {
        "label": "Memory of a device",
        "help": "Share of a device, beside trainings",
        "unit": "GiB",
    },
    "with_packages": {"help": "Python packages that it needs", "example": ["starlette", "uvicorn"]},
}
MAIN = tuple(
    field._replace(**_WORDS.get(name, {})) for name in _MAIN for field in FIELDS if field.name == name
)
MORE = tuple(field for name in _MORE for field in FIELDS if field.name == name)
_SHOWN = frozenset({*_MAIN, *_MORE, "gpus", "pool"})
_DEFAULT_GPUS = "1"


def default_texts() -> dict[str, str]:
    return {"gpus": _DEFAULT_GPUS, "pool": "default"}


def texts_of(service: Service) -> dict[str, str]:
    """The form as it would be filled to begin this service."""
    stored: JsonObject = service.job_fields if isinstance(service.job_fields, dict) else {}
    texts = {**default_texts(), **{field.name: _number_text(getattr(service, field.name)) for field in RULES}}
    for field in (*MAIN, *MORE, *(field for field in FIELDS if field.name in ("gpus", "pool"))):
        if field.name in stored:
            try:
                texts[field.form_name] = forms.write(field, stored[field.name])
            except (TypeError, ValueError, AttributeError, KeyError):
                texts[field.form_name] = ""  # what was stored is not among this field's values
    return texts


def read_rules(texts: Mapping[str, str]) -> tuple[JsonObject, dict[str, list[str]]]:
    """The rules that a filled form has, and what cannot be read; an empty field has its default."""
    rules: JsonObject = {}
    errors: dict[str, list[str]] = {}
    for field in RULES:
        if field.name not in texts:
            continue
        text = texts[field.name].strip()
        try:
            if not text:
                rules[field.name] = asking.ServiceSpec.model_fields[field.name].default
            elif field.name == "health_path":
                rules[field.name] = text
            else:
                rules[field.name] = _duration(text) if field.kind == "duration" else int(text)
        except (ValueError, WrongUse):
            errors[field.name] = [
                _("{text!r} is not a time such as 90 or 10m.").format(text=text[:40])
                if field.kind == "duration"
                else _("{text!r} is not a whole number.").format(text=text[:40])
            ]
    return rules, errors


def read_job(texts: Mapping[str, str], kept: Mapping[str, Any]) -> tuple[JobFields, dict[str, list[str]]]:
    """The fields of the job that a filled form has, over those that the form does not show; unknown ones go.

    Args:
        kept: the job's fields as they are stored.
    """
    job, errors = forms.read_fields({name: texts.get(name, "") for name in _SHOWN}, [])
    others = {name: value for name, value in kept.items() if name not in _SHOWN and is_kept(name)}
    return {**others, **job}, errors


def _duration(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return duration_s(text)


def _number_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
