"""A job with every field set to something else than its default, also those that are added one day."""

from typing import Any

from berth.shared.field import JobField
from berth.shared.job_fields import FIELDS
from orchestrator.spec.job_spec import JobSpec

DEFAULTS = JobSpec().model_dump(mode="json")


OTHER_STARTS = frozenset({"module", "command", "program"})  # a job has one of these, or an entrypoint
INSTEAD = frozenset({"image"})  # of packages, an interpreter, and a model that Berth trains


def every_field(**values: Any) -> dict[str, Any]:
    """All fields but the code; ``values`` name what has to exist, such as a dataset."""
    left_out = {"source", "git"} | OTHER_STARTS | INSTEAD
    return {field.name: _other(field) for field in FIELDS if field.name not in left_out} | values


def _other(field: JobField) -> Any:
    default = DEFAULTS[field.name]
    match field.kind:
        case "choice":
            return next(choice for choice in field.choices if choice != default)
        case "switch":
            return not default
        case "count":
            return (default or 1) + 1
        case "number":
            return 0.1
        case "duration":
            return 100.1  # no short number of hours or minutes
        case "arguments":
            return ["--text", "it's\ntwo lines", "{checkpoint}", ""]
        case "assignments":
            return {"PLAIN": " a=b'c ", "LINES": "one\ntwo\\\r", "QUOTED": "$'x'", "EMPTY": ""}
    return field.example
