"""Types of fields that several requests share: names, times, sizes, paths, variables that a job may set, and jobs to wait for."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictStr,
    model_serializer,
)

from orchestrator.exceptions import Sentence
from orchestrator.spec.plain_text import clean_text, why_unwritable

YEAR_S = 366 * 24 * 3600
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# Variables that control the loader, the interpreter or our own launch are not for jobs.
_REFUSED_NAMES = frozenset(
    [
        "PATH",
        "HOME",
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "PYTHONINSPECT",
        "BASH_ENV",
        "ENV",
        "IFS",
        "SHELLOPTS",
        "NCCL_DEBUG_FILE",
        "GCONV_PATH",
    ]
)
_REFUSED_PREFIXES = ("LD_", "BERTH_", "TORCHELASTIC_", "DYLD_", "GLIBC_")


def why_not_a_variable(name: str) -> str | None:
    """Explain why a job may not set a variable of this name; None if it may."""
    if not _ENVIRONMENT_NAME.fullmatch(name):
        return Sentence(
            "{name!r} is not a name of a variable; use letters, digits and underscores", name=name[:40]
        )
    if name in _REFUSED_NAMES or name.startswith(_REFUSED_PREFIXES):
        return Sentence("{name} is set by Berth or steers its launch; choose another name", name=name)
    return None


def _finite(value: float | None) -> float | None:
    if value is not None and not (value == value and abs(value) != float("inf")):
        raise ValueError("give a finite number")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("give a number")  # pydantic turns ValueError into a field's message
    return value


def _plain(value: str) -> str:
    if problem := why_unwritable(value):
        raise ValueError(problem)
    return value


def _relative_path(value: str) -> str:
    parts = value.split("/")
    if value.startswith("/") or ".." in parts or "\\" in value or "\n" in value:
        raise ValueError("give a path inside the uploaded files, such as train.py or src/train.py")
    return _plain(value)


def read_moment(value: Any) -> datetime:
    """Read an RFC 3339 time with its offset, and return it in UTC.

    Raises:
        ValueError: the text has no time zone, or is no time.
    """
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise ValueError("give a time with its zone, such as 2026-11-21T07:00:00Z")
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            Sentence("there is no time {value!r}; give one such as 2026-11-21T07:00:00Z", value=value)
        ) from None


Moment = Annotated[datetime, BeforeValidator(read_moment, json_schema_input_type=datetime)]
Name = Annotated[StrictStr, AfterValidator(clean_text), Field(min_length=1, max_length=200)]
Tag = Annotated[StrictStr, AfterValidator(clean_text), Field(min_length=1, max_length=64)]
PlainText = Annotated[StrictStr, AfterValidator(_plain)]
LONGEST_ARGUMENT = 8192
Argument = Annotated[PlainText, Field(max_length=LONGEST_ARGUMENT)]
Number = Annotated[float, BeforeValidator(_number)]
Gib = Annotated[Number, AfterValidator(_finite), Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Seconds = Annotated[Number, AfterValidator(_finite), Field(gt=0, le=YEAR_S, allow_inf_nan=False)]
RelativePath = Annotated[StrictStr, AfterValidator(_relative_path), Field(min_length=1, max_length=1024)]


def _module(value: str) -> str:
    if not all(part.isidentifier() for part in value.split(".")):
        is_file = value.endswith(".py") or "/" in value
        raise ValueError(
            "give a module as after python -m, such as pkg.train"
            + ("; a file is given as entrypoint" if is_file else "")
        )
    return value


Module = Annotated[StrictStr, AfterValidator(_module), Field(min_length=1, max_length=255)]


class Dependency(BaseModel):
    """A job that has to end first, with success or in any way. Short form: its id alone."""

    model_config = ConfigDict(extra="forbid")

    job: Annotated[StrictStr, Field(min_length=1, max_length=64)]
    when: Literal["success", "any"] = "success"

    @model_serializer
    def _shortest(self) -> str | dict[str, str]:
        return self.job if self.when == "success" else {"job": self.job, "when": self.when}


def _read_dependency(value: Any) -> Any:
    return {"job": value} if isinstance(value, str) else value


DependsOn = Annotated[Dependency, BeforeValidator(_read_dependency, json_schema_input_type=str | Dependency)]
