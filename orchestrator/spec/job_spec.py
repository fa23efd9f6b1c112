"""What a job is: the rules for its fields, for form, REST and command line alike."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)

from berth.shared.command_lines import started_words
from berth.shared.field import AS_MANY
from berth.shared.job_fields import BY_NAME, STARTS
from orchestrator.exceptions import Sentence
from orchestrator.spec.arrays import ArraySpec, read_array
from orchestrator.spec.data_names import check_reference
from orchestrator.spec.field_types import (
    Argument,
    DependsOn,
    Gib,
    Module,
    Moment,
    Name,
    Number,
    PlainText,
    RelativePath,
    Seconds,
    Tag,
    why_not_a_variable,
)
from orchestrator.spec.git_source import GitState, Source, called
from orchestrator.spec.images import LONGEST_NAME, image_text
from orchestrator.spec.packages import EnvironmentFiles, Package

GIB = 1024**3
# Fields of a job by name, not yet checked: what JobSpec.model_validate takes.
JobFields: TypeAlias = dict[str, Any]

DEFAULT_SCRIPT = "train.py"
RECIPES = "training.recipes"  # our program that works with a model, or answers with it
SCRIPT_SUFFIXES = frozenset({".py", ".sh"})
SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
SHELLS_FLAG = re.compile(r"-[a-z]*c")  # the command is the next word
_WORD_ENDS = re.compile(r"[\s;&|()]+")
_SETS = re.compile(r"\w+=")  # a variable before a command
_RANGE = re.compile(r"(?P<least>\d{1,6})\.\.(?P<most>\d{1,6})|<=(?P<at_most>\d{1,6})", re.ASCII)


def _command(value: list[str]) -> list[str]:
    if value and not value[0].strip():
        raise ValueError('give the program first, such as ["accelerate", "launch", "train.py"]')
    return value


def _called(words: Sequence[str]) -> str:
    """What a command is called: its script or module, else its program; of what a shell is given, that command."""
    if PurePosixPath(words[0]).name in SHELLS:
        flag = next((at for at, word in enumerate(words[:-1]) if SHELLS_FLAG.fullmatch(word)), None)
        inner = _WORD_ENDS.split(words[flag + 1].strip()) if flag is not None else []
        own = [word.strip("'\"") for word in inner if word and not _SETS.match(word)]
        words = own or words
    script = next((word for word in words if PurePosixPath(word).suffix in SCRIPT_SUFFIXES), None)
    module = next((after for word, after in pairwise(words) if word == "-m"), None)
    if script is None and module is not None:
        return module.rpartition(".")[2] or module
    return PurePosixPath(script or words[0]).stem or words[0]


def describe_fields(schema: Mapping[str, Any]) -> None:
    """Give the properties of a schema that are fields of a job their title, description and example."""
    for name, property_ in schema["properties"].items():
        if field := BY_NAME.get(name):
            property_["title"] = field.label
            property_.setdefault("description", field.help)
            property_.setdefault("examples", [field.example])


def device_range(text: str) -> tuple[int, int]:
    """The fewest and the most devices that a text such as "auto", "2..8" or "<=4" names.

    Raises:
        ValueError: it names none.
    """
    if text.strip() == "auto":
        return 1, AS_MANY
    if match := _RANGE.fullmatch(text.strip()):
        least, most = int(match["least"] or 1), int(match["most"] or match["at_most"])
        if 1 <= least <= most <= AS_MANY:
            return least, most
    raise ValueError(
        Sentence("gpus: {text!r} is no number of devices; give 4, auto, 2..8 or <=4", text=text[:40])
    )


class JobSpec(BaseModel):
    """A job as people write it; what its fields mean stands in ``berth.shared.job_fields``."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=describe_fields)

    name: Name | None = None
    kind: Literal["script", "model", "session", "service"] = "script"
    entrypoint: RelativePath | None = DEFAULT_SCRIPT
    module: Module | None = None
    command: Annotated[list[Argument], AfterValidator(_command), Field(max_length=1000)] = Field(
        default_factory=list
    )
    program: Literal["jupyter"] | None = None
    workdir: RelativePath | None = None
    args: list[Argument] = Field(default_factory=list, max_length=1000)
    resume_args: list[Argument] = Field(default_factory=list, max_length=100)
    datasets: list[StrictStr] = Field(default_factory=list, max_length=32)
    pool: Annotated[StrictStr, Field(min_length=1, max_length=64)] = "default"
    gpus: Annotated[StrictInt, Field(ge=0, le=AS_MANY)] = 1
    min_gpus: Annotated[StrictInt, Field(ge=1)] | None = None
    max_gpus: Annotated[StrictInt, Field(ge=1, le=AS_MANY)] | None = None
    elastic: StrictBool = True
    gpu_memory_gib: Gib | None = None
    gpu_memory_limit_gib: Gib | None = None
    cpus: Annotated[StrictInt, Field(ge=1, le=4096)] | None = None
    memory_gib: Gib | None = None
    priority: Annotated[StrictInt, Field(ge=0, le=100)] = 50
    time_limit_s: Seconds | None = None
    max_retries: Annotated[StrictInt, Field(ge=0, le=100)] = 3
    env: dict[StrictStr, Annotated[PlainText, Field(max_length=32_768)]] = Field(
        default_factory=dict, max_length=200
    )
    secrets: list[StrictStr] = Field(default_factory=list, max_length=50)
    tags: list[Tag] = Field(default_factory=list, max_length=20)
    project: Annotated[StrictStr, Field(min_length=1, max_length=64)] | None = None
    visibility: Literal["private", "project", "lab"] | None = None
    depends_on: list[DependsOn] = Field(default_factory=list, max_length=100)
    not_before: Moment | None = None
    array: (
        Annotated[ArraySpec, BeforeValidator(read_array, json_schema_input_type=str | int | ArraySpec)] | None
    ) = None
    total_steps: Annotated[StrictInt, Field(ge=1, le=10**15)] | None = None
    grace_period_s: Annotated[Number, Field(ge=0, le=3600, allow_inf_nan=False)] = 30
    preemptible: StrictBool = False
    checkpoint_glob: Annotated[RelativePath, Field(max_length=256)] | None = None
    begin_anew: StrictBool = True
    python: Annotated[StrictStr, Field(max_length=64)] | None = None
    environment: Annotated[PlainText, Field(min_length=1, max_length=1024)] | EnvironmentFiles | None = None
    with_packages: list[Package] = Field(default_factory=list, max_length=200)
    image: (
        Annotated[PlainText, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(image_text)] | None
    ) = None
    hang_timeout_s: Seconds | None = None
    launcher: Literal["torchrun", "direct"] = "torchrun"
    git: GitState | None = None
    source: Source | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_gpus(cls, values: Any) -> Any:
        """Read "auto", "2..8" and "<=4" into the fewest and the most devices."""
        gpus = values.get("gpus") if isinstance(values, Mapping) else None
        if not isinstance(gpus, str):
            return values
        if values.get("max_gpus") is not None:
            raise ValueError(
                Sentence("gpus: {gpus!r} names a range already; leave max_gpus out", gpus=gpus[:40])
            )
        least, most = device_range(gpus)
        return {**values, "gpus": least, "max_gpus": most}

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        """Allow one of the ways to start; a job that starts in another way than by a script has no entrypoint."""
        given = [name for name in STARTS if name in self.model_fields_set and getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                Sentence(
                    "{given}: give one of entrypoint, module and command, not {given_2} and {given}",
                    given=given[1],
                    given_2=given[0],
                )
            )
        if self.kind == "service":
            self._become_service(given)
            return self
        if self.is_session or self.program:
            self._become_session(given)
            return self
        other = next((name for name in given if name != "entrypoint"), None)
        if other and self.kind == "model":
            raise ValueError(
                Sentence(
                    "{other}: Berth starts a model itself; name the model's file as entrypoint", other=other
                )
            )
        if other:
            self.entrypoint = None
        elif self.entrypoint is None:
            raise ValueError("entrypoint: give the script to run, or else a module or a command")
        return self

    def _become_session(self, given: Sequence[str]) -> None:
        """Make this a session: one program or command that listens for people, on devices that stay the same.

        Raises:
            ValueError: something else is started, or a field that sessions cannot follow is set.
        """
        if given and given[0] not in ("program", "command"):
            raise ValueError(
                Sentence("{given}: a session runs a program or a command; leave {given} out", given=given[0])
            )
        if self.kind == "model":
            raise ValueError("program: Berth starts a model itself; leave the program out")
        self._check_fixed("a session")
        self.kind, self.entrypoint = "session", None
        if not given:
            self.program = "jupyter"

    def _become_service(self, given: Sequence[str]) -> None:
        """Make this a replica of a service: one command that listens, on devices that stay the same.

        Raises:
            ValueError: something else is started, or a field that services cannot follow is set.
        """
        is_model = given == ["module"] and self.module == RECIPES
        if given != ["command"] and not is_model:
            raise ValueError("command: a service runs a command that listens on BERTH_SOCKET; give it alone")
        self._check_fixed("a service")
        self.entrypoint = None

    def _check_fixed(self, what: str) -> None:
        for name in ("array", "max_gpus", "min_gpus"):
            if getattr(self, name) is not None:
                raise ValueError(
                    Sentence(
                        "{name}: {what} is one run on a fixed number of devices; leave it out",
                        name=name,
                        what=what,
                    )
                )

    @model_validator(mode="after")
    def _check_image(self) -> Self:
        """An image brings its own Python and packages."""
        if self.image is None:
            return self
        for name in ("environment", "with_packages", "python", "program"):
            if getattr(self, name):
                raise ValueError(
                    Sentence(
                        "image: an image has its own Python and packages; leave {name} out, or image",
                        name=name,
                    )
                )
        if self.kind == "model":
            raise ValueError(
                "image: Berth trains a model with its own Python; leave image out, or give a script"
            )
        if self.launcher == "direct" and max(self.gpus, self.max_gpus or 0) > 1 and not self.command:
            raise ValueError(
                "image: several ranks in an image are started by its torchrun; leave launcher out"
            )
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in self.env:
            if problem := why_not_a_variable(name):
                raise ValueError(Sentence("env: {problem}", problem=problem))
        if self.gpus == 0 and self.kind == "model":
            raise ValueError("gpus: a model is trained on at least one device; give 1 or more")
        if self.min_gpus is not None and self.min_gpus > self.gpus:
            raise ValueError(
                Sentence(
                    "min_gpus: {min_gpus} is more than gpus, which is {gpus}",
                    min_gpus=self.min_gpus,
                    gpus=self.gpus,
                )
            )
        if self.gpu_memory_limit_gib is not None:
            self._check_memory_limit(self.gpu_memory_limit_gib)
        if self.max_gpus is not None and not 0 < self.gpus <= self.max_gpus:
            why = (
                Sentence("a CPU slot is one")
                if self.gpus == 0
                else Sentence("gpus is {gpus}", gpus=self.gpus)
            )
            raise ValueError(
                Sentence("max_gpus: {max_gpus} does not fit, because {why}", max_gpus=self.max_gpus, why=why)
            )
        for reference in self.datasets:
            check_reference(reference)
        return self

    def _check_memory_limit(self, limit_gib: float) -> None:
        if self.gpu_memory_gib is None:
            raise ValueError(
                "gpu_memory_limit_gib: give gpu_memory_gib too, the memory that the job is placed by and always has"
            )
        if limit_gib < self.gpu_memory_gib:
            raise ValueError(
                Sentence(
                    "gpu_memory_limit_gib: {limit_gib:g} is less than gpu_memory_gib, which is {gpu_memory_gib:g}",
                    limit_gib=limit_gib,
                    gpu_memory_gib=self.gpu_memory_gib,
                )
            )

    @property
    def started_as(self) -> str:
        """What the job is called that has no name: its script, module, or script of its command, or its repository."""
        if self.module is not None:
            return self.module.rpartition(".")[2]
        if self.source is not None and self.source.git and not self.model_fields_set & set(STARTS):
            return called(self.source.git)
        return _called(
            started_words({"command": self.command, "entrypoint": self.entrypoint, "program": self.program})
        )

    @property
    def is_session(self) -> bool:
        """Whether people work in it through the browser, rather than wait for its end."""
        return self.kind == "session"

    @property
    def has_socket(self) -> bool:
        """Whether its program listens on a socket of its own: a session's, or that of a service's replica."""
        return self.kind in ("session", "service")

    @property
    def runs_once(self) -> bool:
        """Whether one program runs with all devices: there are no ranks of ours, and so one log."""
        return bool(self.command) or self.is_session

    @property
    def script_name(self) -> str:
        """The name of a script that is uploaded alone: it is what the job starts, unless a command does."""
        if self.module is not None:
            return f"{self.module.rpartition('.')[2]}.py"
        return self.entrypoint or DEFAULT_SCRIPT

    @property
    def folder(self) -> str:
        """The folder of the upload that the job runs in, as a plain path; a dot for the upload's own."""
        return posixpath.normpath(self.workdir or ".")

    @property
    def device_count(self) -> int:
        """The devices that the job holds; one that needs no GPU holds a CPU slot."""
        return max(1, self.gpus)

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The memory claimed on each device; None: the whole device."""
        return None if self.gpu_memory_gib is None else round(self.gpu_memory_gib * GIB)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gib is None else round(self.memory_gib * GIB)


# Pydantic's own words for what has a limit, with the name of the limit in its context.
_LIMITS = {
    "greater_than": "Input should be greater than {gt}",
    "greater_than_equal": "Input should be greater than or equal to {ge}",
    "less_than": "Input should be less than {lt}",
    "less_than_equal": "Input should be less than or equal to {le}",
    "literal_error": "Input should be {expected}",
}


def problem_text(problem: Mapping[str, Any]) -> str:
    """Describe one of pydantic's errors for people."""
    context = problem.get("ctx") or {}
    if words := _LIMITS.get(problem["type"]):
        return Sentence(words, **context)
    raised = context.get("error")
    if isinstance(raised, ValueError) and raised.args and isinstance(raised.args[0], Sentence):
        return raised.args[0]
    # Pydantic calls the characters of a text items if a function cleaned the text.
    is_text = context.get("field_type") == "Value" or str(problem["type"]).startswith("string")
    match problem["type"]:
        case "too_long" | "string_too_long":
            return Sentence(
                "give at most {most:,} characters" if is_text else "give at most {most:,} entries",
                most=context["max_length"],
            )
        case "too_short" | "string_too_short":
            return "must not be empty"  # every least length is one
    return str(problem["msg"]).removeprefix("Value error, ")
