"""One field of a job: its kind, its words, and how its values are written for people and shells."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from berth.shared import words

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Kind = Literal[
    "text",
    "count",  # a whole number
    "devices",  # a whole number, or a range of them
    "number",
    "duration",  # seconds
    "arguments",  # words of a command line
    "names",  # a list of texts
    "lines",  # a list of texts that may have commas in them
    "assignments",  # texts by name
    "time",
    "jobs",  # jobs to wait for
    "choice",
    "switch",
    "array",
    "code",
    "commit",
]
AS_MANY = 100_000  # as a number of devices: as many as there are and help
UNITS_S: Mapping[str, int] = {"hours": 3600, "minutes": 60, "seconds": 1}
_WHOLE = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_HOW_TO_TYPE: Mapping[Kind, str] = {
    "assignments": "One NAME=value a line.",
    "duration": "90s or 1h30m works too.",
    "jobs": "any:ID for one that only has to end.",
    "lines": "One a line.",
    "names": "Separated by commas.",
}


class JobField(NamedTuple):
    """One field of a job; ``berth.shared.job_fields`` has them all."""

    name: str  # in JSON, in JobSpec and in the client's Spec
    label: str  # on pages
    help: str  # a noun phrase of at most ten words: --help, REST's schema, the form, the reference
    example: Json  # as JSON has it
    kind: Kind = "text"
    unit: str = ""  # of a number on the form; JSON has seconds
    empty: str = ""  # what a job gets that does not set the field
    choices: tuple[str, ...] = ()
    option: str = ""  # of the command line; one that is named like a choice takes no value
    metavar: str = ""  # what stands for the option's value
    option_help: str = ""  # where the option says something else than the field
    commands: str = "run plan again"  # that have the option
    form: Literal["", "main", "more", "own"] = "more"  # its part of the form; "own": a control made for it
    changeable: bool = False  # after the submit
    setting: bool = False  # counts for Compare: jobs that differ here were not run with the same settings

    @property
    def form_name(self) -> str:
        """The name of its control: the form asks for some durations in another unit than seconds."""
        if self.kind == "duration" and self.unit != "seconds":
            return f"{self.name.removesuffix('_s')}_{'h' if self.unit == 'hours' else 'min'}"
        return self.name

    @property
    def form_label(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def how_to_type(self) -> str:
        """How a form wants a value of this kind; empty where that is plain."""
        return _HOW_TO_TYPE.get(self.kind, "")

    @property
    def hint(self) -> str:
        """What the form says below a control."""
        empty = f"Empty: {self.empty}." if self.empty else ""
        return " ".join(filter(None, [f"{self.help}.", self.how_to_type, empty]))

    def text(self, value: Json) -> str:
        """A value for people to read; empty for none."""
        if value is None or value == [] or value == {}:
            return ""
        if self.kind == "duration" and isinstance(value, int | float):
            return words.duration(value)
        if self.kind == "time" and isinstance(value, str):
            return f"{written_time(value)} {self.unit}"
        if self.kind == "switch":
            return "yes" if value else "no"
        if value == AS_MANY and self.kind == "count":
            return "as many as help"
        if isinstance(value, float):
            return f"{written_number(value)}{f' {self.unit}' if self.unit else ''}"
        if isinstance(value, Mapping) and self.kind == "commit":
            branch = f" on {value['branch']}" if value.get("branch") else ""
            url = f" of {value['url']}" if value.get("url") else ""
            return f"{str(value['commit'])[:12]}{branch}{url}{', with changes' if value.get('dirty') else ''}"
        if isinstance(value, Mapping):
            return ", ".join(f"{name}={one}" for name, one in value.items())
        if isinstance(value, Sequence) and not isinstance(value, str):
            return (" " if self.kind == "arguments" else ", ").join(map(_text_of_entry, value))
        return str(value)


def _text_of_entry(entry: Json) -> str:
    """An entry of a list; of a dependency the job's id, and whether its failure counts."""
    if isinstance(entry, Mapping):
        return f"{entry['job']} (however it ends)"
    return str(entry)


def read_devices(text: str) -> int | str:
    """A number of devices; a range such as "auto" or "2..8" stays a text, which the server reads."""
    return int(text) if _WHOLE.fullmatch(text) else text


def written_number(value: float) -> str:
    """A number as short as it can be written without losing a digit: 16, 0.1."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(float(value))


def written_duration(seconds: float, unit: str = "seconds") -> str:
    """A number in ``unit`` where that is exact, else seconds with an s: 1.5 (hours), 100s."""
    text = f"{seconds / UNITS_S[unit]:g}"
    return text if float(text) * UNITS_S[unit] == seconds else f"{written_number(seconds)}s"


def written_time(text: str) -> str:
    """An RFC 3339 time as people type it, in UTC: 2026-11-22 07:00."""
    moment = datetime.fromisoformat(text)
    return f"{moment:%Y-%m-%d %H:%M}" if not moment.second and not moment.microsecond else text


def option_words(field: JobField, value: Json) -> list[str]:
    """The option of a field with its value, as often as the value has entries."""
    option = field.option.split()[0]
    match value:
        case bool():
            return [word for word in option.split("/") if word.startswith("--no-") != value][:1]
        case str() if option == f"--{value}":
            return [option]
        case int() | float() if field.kind == "duration":
            return [option, f"{value / 60:.0f}m" if value % 60 == 0 else f"{written_number(value)}s"]
        case int() | float():
            return [option, written_number(value)]
        case Mapping() if field.kind == "assignments":
            return [word for name, one in value.items() for word in (option, f"{name}={one}")]
        case Sequence() if not isinstance(value, str) and field.kind == "arguments":
            return [option, shlex.join(map(str, value))]
        case Sequence() if not isinstance(value, str):
            return [word for entry in value for word in _entry_words(option, entry)]
    return [option, str(value)]


def _entry_words(option: str, entry: Json) -> list[str]:
    return [f"{option}-any", str(entry["job"])] if isinstance(entry, Mapping) else [option, str(entry)]
