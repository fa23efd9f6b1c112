"""The one table of a job's fields: what each is called, what it means, and where people set it.

The server's ``JobSpec`` has the rules (types, limits, defaults) under the same names. REST's schema, the options of
``berth run``, the submit form, the job page, Compare and the reference are made from this table or tested against it.
It lives in the client's package because the command line may import nothing of the server's.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from berth import words

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Kind = Literal[
    "text",
    "count",  # a whole number
    "number",
    "duration",  # seconds
    "arguments",  # words of a command line
    "names",  # a list of texts
    "assignments",  # texts by name
    "time",
    "jobs",  # jobs to wait for
    "choice",
    "switch",
    "array",
    "code",
]
UNITS_S: Mapping[str, int] = {"hours": 3600, "minutes": 60, "seconds": 1}


_HOW_TO_TYPE: Mapping[Kind, str] = {
    "assignments": "One NAME=value a line.",
    "duration": "90s or 1h30m works too.",
    "jobs": "any:ID for one that only has to end.",
    "names": "Separated by commas.",
}


class JobField(NamedTuple):
    """One field of a job."""

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
    def hint(self) -> str:
        """What the form says below a control."""
        empty = f"Empty: {self.empty}." if self.empty else ""
        return " ".join(filter(None, [f"{self.help}.", _HOW_TO_TYPE.get(self.kind, ""), empty]))

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
        if isinstance(value, float):
            return f"{written_number(value)}{f' {self.unit}' if self.unit else ''}"
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


FIELDS: tuple[JobField, ...] = (
    JobField(
        "name",
        "Name",
        "Name of the job",
        "tiny-gpt",
        empty="the script's name",
        option="--name -n",
        form="main",
        changeable=True,
    ),
    JobField(
        "kind",
        "Kind",
        "Training script, or a model that Berth trains",
        "script",
        "choice",
        choices=("script", "model"),
        option="--model",
        option_help="File that only defines a model; Berth trains it",
        commands="run plan",
        setting=True,
    ),
    JobField(
        "entrypoint",
        "Script to run",
        "Script inside an archive or folder",
        "fit.py",
        empty="the only script, else train.py",
        option="--entrypoint -e",
        commands="run",
        setting=True,
    ),
    JobField(
        "args",
        "Arguments",
        "Arguments of the script, as on a command line",
        ["--lr", "3e-4"],
        "arguments",
        form="main",
        setting=True,
    ),
    JobField(
        "resume_args",
        "Arguments to resume",
        "Arguments added from the second attempt on",
        ["--resume", "{checkpoint}"],
        "arguments",
        option="--resume-args",
        metavar="WORDS",
    ),
    JobField(
        "datasets",
        "Datasets",
        "Registered datasets",
        ["shakespeare@1"],
        "names",
        option="--data -d",
        metavar="NAME[@VERSION]",
        form="own",
        setting=True,
    ),
    JobField(
        "pool",
        "Pool",
        "Pool of devices",
        "a100",
        empty="default",
        option="--pool",
        form="own",
        setting=True,
    ),
    JobField(
        "gpus",
        "Devices",
        "Number of devices",
        2,
        "count",
        empty="1",
        option="-g --gpus",
        commands="run plan again resume",
        form="own",
        setting=True,
    ),
    JobField(
        "min_gpus",
        "Fewest devices",
        "Fewest devices to continue with if some fail",
        1,
        "count",
        empty="all of them",
        option="--min-gpus",
        setting=True,
    ),
    JobField(
        "gpu_memory_gib",
        "Memory on each device",
        "Memory on each device, to share it",
        20,
        "number",
        unit="GiB",
        empty="the whole device",
        option="--memory -m",
        metavar="GIB",
        setting=True,
    ),
    JobField(
        "cpus",
        "CPU cores",
        "Number of CPU cores",
        4,
        "count",
        empty="a fair share",
        option="--cpus",
        setting=True,
    ),
    JobField(
        "memory_gib",
        "RAM",
        "Main memory",
        16,
        "number",
        unit="GiB",
        empty="no limit",
        option="--ram",
        metavar="GIB",
        setting=True,
    ),
    JobField(
        "priority",
        "Priority",
        "Priority from 0 to 100; above 60 for operators",
        50,
        "count",
        empty="50",
        option="--priority -p",
        changeable=True,
    ),
    JobField(
        "time_limit_s",
        "Time limit",
        "Running time over all attempts",
        86_400,
        "duration",
        unit="hours",
        empty="no limit",
        option="--time-limit -t",
        metavar="2h",
        commands="run plan again resume",
        changeable=True,
        setting=True,
    ),
    JobField(
        "max_retries",
        "Retries",
        "Retries after failures that are not the script's",
        3,
        "count",
        empty="3",
        option="--retries",
        setting=True,
    ),
    JobField(
        "env",
        "Environment",
        "Environment variables of the job",
        {"SEED": "1"},
        "assignments",
        option="--env",
        metavar="NAME=VALUE",
        setting=True,
    ),
    JobField(
        "secrets",
        "Secrets",
        "Stored secrets to put into the environment",
        ["WANDB_API_KEY"],
        "names",
        option="--secret",
        metavar="NAME",
        setting=True,
    ),
    JobField(
        "tags", "Tags", "Tags to find the job by", ["paper-x"], "names", option="--tag", changeable=True
    ),
    JobField(
        "depends_on",
        "Start after",
        "Jobs that must succeed first",
        ["8c2f01d4", {"job": "77b0e3aa", "when": "any"}],
        "jobs",
        option="--after",
        metavar="JOB",
    ),
    JobField(
        "not_before",
        "Start not before",
        "Earliest start",
        "2026-11-22T07:00:00Z",
        "time",
        unit="UTC",
        empty="at once",
        option="--at",
        metavar="TIME",
        option_help="Earliest start: 2h, 22:30 or '2026-11-22 07:00'",
    ),
    JobField(
        "array",
        "Array",
        "Indices of many jobs; %2 runs two at once",
        "0-9%2",
        "array",
        empty="one job",
        option="--array",
        metavar="0-9%2",
        commands="run plan",
    ),
    JobField(
        "total_steps",
        "Steps in all",
        "Total steps, for the progress bar",
        100_000,
        "count",
        empty="what the script reports",
        option="--steps",
        setting=True,
    ),
    JobField(
        "grace_period_s",
        "Time to save",
        "Time to save between SIGTERM and SIGKILL",
        30,
        "duration",
        unit="seconds",
        empty="30",
        option="--grace-period",
        metavar="30s",
    ),
    JobField(
        "preemptible",
        "May be paused",
        "Pause for a more urgent job, with a checkpoint",
        True,
        "switch",
        option="--preemptible",
    ),
    JobField(
        "checkpoint_glob",
        "Checkpoint files",
        "Checkpoints that the script writes elsewhere",
        "out/*.pt",
        empty="the checkpoint folder",
        option="--checkpoint-glob",
        metavar="'out/*.pt'",
        changeable=True,
    ),
    JobField(
        "begin_anew",
        "Restart from step 0",
        "Restart from step 0 if all checkpoints are damaged",
        True,
        "switch",
        option="--restart/--no-restart",
    ),
    JobField(
        "python",
        "Interpreter",
        "Interpreter registered with the pool",
        "torch-2.8",
        empty="Berth's own",
        option="--python",
        metavar="NAME",
        setting=True,
    ),
    JobField(
        "hang_timeout_s",
        "Longest silence",
        "Restart after this long without output",
        1800,
        "duration",
        unit="minutes",
        empty="a warning only",
        option="--hang-timeout",
        metavar="30m",
    ),
    JobField(
        "launcher",
        "Launcher",
        "Program that starts the ranks",
        "torchrun",
        "choice",
        choices=("torchrun", "direct"),
        option="--launcher",
        metavar="torchrun|direct",
        setting=True,
    ),
    JobField(
        "source", "Code", "Script's text, or hash of an earlier upload", {"text": "print(1)"}, "code", form=""
    ),
)
BY_NAME: Mapping[str, JobField] = {field.name: field for field in FIELDS}
CHANGEABLE = frozenset(field.name for field in FIELDS if field.changeable)
SETTINGS: tuple[JobField, ...] = tuple(field for field in FIELDS if field.setting)


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


def command_line(spec: Mapping[str, Json], defaults: Mapping[str, Json], code: str) -> str:
    """``berth run`` for a job; fields that have their default are left out.

    Args:
        code: the script, archive or folder.
    """
    options = [
        word
        for field in FIELDS
        if field.option
        and spec.get(field.name) not in (None, [], {}, defaults.get(field.name))
        and (field.name, spec[field.name]) != ("entrypoint", code)
        for word in _option_words(field, spec[field.name])
    ]
    args = spec.get("args")
    behind = ["--", *map(str, args)] if args and isinstance(args, Sequence) else []
    return shlex.join(["berth", "run", *options, code, *behind])


def _option_words(field: JobField, value: Json) -> list[str]:
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
