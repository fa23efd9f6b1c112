"""Creates and changes sweeps: reads what a person asks for, and checks all of it before the first trial."""

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Sum
from django.utils import timezone
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from orchestrator.exceptions import Conflict, Forbidden, Impossible, Malformed
from orchestrator.jobs.environments import requests
from orchestrator.jobs.submission import checks, intake
from orchestrator.jobs.submission.code import Upload, store_code
from orchestrator.live import wakeups
from orchestrator.models import Sweep, SweepState
from orchestrator.people import rights
from orchestrator.spec.job_spec import JobSpec, Name, problem_text, why_not_a_variable
from orchestrator.sweeps.core.flags import read_flags
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.space import MOST_GRID_POINTS, Space, WrongSpace
from orchestrator.sweeps.ending import change as change_columns
from orchestrator.sweeps.handing_over import example, fill, placeholders, variable_of

MOST_TRIALS = 10_000
MOST_WIDTH = 1000
DEFAULT_WIDTH = 4
# Of a job's fields, those that make no sense for many jobs of one sweep.
NOT_FOR_TRIALS = ("array", "name")

M = TypeVar("M", bound=BaseModel)
Direction = Literal["minimize", "maximize"]
SamplerName = Literal["auto", "random", "grid", "tpe", "gp", "cmaes"]
Trials = Annotated[StrictInt, Field(ge=1, le=MOST_TRIALS)]
Width = Annotated[StrictInt, Field(ge=1, le=MOST_WIDTH)]
DeviceHours = Annotated[float, Field(gt=0, le=10_000_000, allow_inf_nan=False)]


class Budget(BaseModel):
    """How much a sweep may spend; at least one of the two."""

    model_config = ConfigDict(extra="forbid")

    trials: Trials | None = None
    device_hours: DeviceHours | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.trials is None and self.device_hours is None:
            raise ValueError("give trials, device_hours or both")
        return self


class SweepSpec(BaseModel):
    """A sweep as people write it; the code comes with the job, as in a submit."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    job: dict[str, Any] = Field(description="the fields of every trial, as of a job")
    space: dict[str, Any] = Field(
        default_factory=dict, description="settings by name: type, low, high, log, choices, when"
    )
    set: Annotated[list[StrictStr], Field(max_length=100)] = Field(
        default_factory=list, description="settings in the short form, such as lr=log:1e-5..1e-1"
    )
    metric: Annotated[StrictStr, Field(min_length=1, max_length=200)] = Field(
        description="as the trials report it"
    )
    direction: Direction
    budget: Budget
    sampler: SamplerName = "auto"
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = Field(
        None, description="null: chosen, and shown"
    )
    min_width: Width = Field(1, description="trials that may wait for devices at once")
    max_width: Width = Field(
        DEFAULT_WIDTH, description="most trials at once; the sweep grows into free devices"
    )
    hand_over: Literal["args", "env"] = Field("args", description="--name value, or variables in capitals")
    early_stopping: StrictBool = Field(
        True, description="compare trials at rungs, pause and stop those that lag"
    )
    first_rung: Annotated[StrictInt, Field(ge=1, le=10**15)] | None = Field(
        None, description="its step; null: a 18th"
    )
    window: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        1, description="reports whose mean counts at a rung"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_width > self.max_width:
            raise ValueError(f"min_width: {self.min_width} is more than max_width, which is {self.max_width}")
        return self


class SweepChanges(BaseModel):
    """What can change while a sweep runs; a larger budget continues one that has ended by it."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    trials: Trials | None = None
    device_hours: DeviceHours | None = None
    min_width: Width | None = None
    max_width: Width | None = None


def parse(data: Any) -> SweepSpec:
    """Read a sweep from JSON.

    Raises:
        Malformed: ``fields`` holds the messages by field.
    """
    if not isinstance(data, Mapping):
        raise Malformed("A sweep is a JSON object with job, space, metric, direction and budget.")
    return _validated(SweepSpec, data, "sweep")


def create(
    user: AbstractBaseUser, spec: SweepSpec, *, script: Upload | None = None, bundle: Upload | None = None
) -> tuple[Sweep, list[str]]:
    """Create a sweep with warnings; a worker begins its trials at once.

    Raises:
        Malformed, TooLarge: the space, the job or its code cannot be read.
        Impossible, Forbidden, TooMany: no trial could ever run, or not by this person.
    """
    space = read_whole_space(spec)
    _check_points(spec, space)
    job, sha256, warnings = _checked_job(user, spec, space, script, bundle)
    sweep = Sweep.objects.create(
        owner_id=user.pk,
        pool_id=job.pool,
        name=(spec.name or f"{job.started_as} sweep")[:180],
        job_fields=job.model_dump(mode="json", exclude={"source", *NOT_FOR_TRIALS}, exclude_unset=True)
        | {"pool": job.pool, "entrypoint": job.entrypoint},
        bundle=sha256,
        space=space.to_json(),
        metric=spec.metric,
        direction=spec.direction,
        window=spec.window,
        sampler=spec.sampler,
        seed=secrets.randbelow(2**31) if spec.seed is None else spec.seed,
        hand_over=spec.hand_over,
        early_stopping=spec.early_stopping,
        first_rung=spec.first_rung,
        longest=job.total_steps,
        max_trials=spec.budget.trials,
        max_device_s=None if spec.budget.device_hours is None else spec.budget.device_hours * 3600,
        min_width=spec.min_width,
        max_width=spec.max_width,
        created_at=timezone.now(),
    )
    wakeups.advance(sweep.pk)
    return sweep, warnings


def read_whole_space(spec: SweepSpec) -> Space:
    """The space of a sweep from its object and its short form.

    Raises:
        Malformed: with the field ``space``.
    """
    try:
        short = read_flags(spec.set)
        if twice := sorted(spec.space.keys() & short.keys()):
            raise WrongSpace("", f"{twice[0]} is in space and in set; give it once")
        return read_space({**spec.space, **short})
    except WrongSpace as error:
        raise Malformed(f"The space cannot be searched: {error}", fields={"space": [str(error)]}) from None


def _check_points(spec: SweepSpec, space: Space) -> None:
    if spec.sampler == "grid" and (points := space.grid_size()) > MOST_GRID_POINTS:
        sentence = f"the grid has {points:,} points, and {MOST_GRID_POINTS:,} is the most; use another sampler or fewer choices"
        raise Impossible(f"The space is too large: {sentence}.", fields={"sampler": [sentence]})


def _checked_job(
    user: AbstractBaseUser, spec: SweepSpec, space: Space, script: Upload | None, bundle: Upload | None
) -> tuple[JobSpec, str, list[str]]:
    """The job of a trial with its stored code, after every check that a submit makes."""
    for name in NOT_FOR_TRIALS:
        if name in spec.job:
            raise Malformed(f"job: {name} is not for trials.", fields={"job": [f"leave out {name}"]})
    _check_handing_over(spec, space)
    # A trial with settings filled in has to be a job; the settings themselves are filled in for each trial.
    intake.parse_spec(fill({**spec.job}, spec.hand_over, example(space)))
    job = intake.parse_spec(spec.job)
    resolved = checks.resolve(user, job)
    if job.source is not None and job.source.bundle is not None:
        checks.check_bundle(user, job.source.bundle)
    job, stored, warnings = store_code(job, script, bundle)
    wanted = requests.of_submit(user, job, stored.sha256)
    return job.model_copy(update={"pool": resolved.pool}), stored.sha256, [*warnings, *wanted.notes]


def _check_handing_over(spec: SweepSpec, space: Space) -> None:
    words = [word for name in ("args", "command") for word in _texts(spec.job.get(name))]
    named = placeholders(words)
    for setting in space.settings:
        if setting.name in named and setting.when is not None:
            sentence = f"{{{setting.name}}} stands in args, but {setting.name} exists only for some trials; leave the word out"
            raise Malformed(f"job: {sentence}.", fields={"job": [sentence]})
        if spec.hand_over == "env" and (problem := why_not_a_variable(variable_of(setting.name))):
            raise Malformed(f"space: {problem}.", fields={"space": [problem]})


def _texts(value: Any) -> Sequence[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def check_steer(user: AbstractBaseUser, sweep: Sweep) -> None:
    """Check that a person who may see a sweep may also change it: its owner, or an operator of its pool.

    Raises:
        Forbidden: they may only look at it.
    """
    role = rights.right_in(user, sweep.pool_id)
    if role == "viewer" or (role == "submitter" and sweep.owner_id != user.pk):
        raise Forbidden("You may look at this sweep, but not change it. Ask an operator of its pool.")


def update(user: AbstractBaseUser, sweep: Sweep, data: Mapping[str, Any]) -> None:
    """Change name, budget or width; a larger budget continues a sweep that ended by it.

    Raises:
        Malformed: another field, or a wrong value.
        Conflict: the sweep has failed or was stopped.
    """
    check_steer(user, sweep)
    changes = _validated(SweepChanges, data, "change")
    given = {name: getattr(changes, name) for name in changes.model_fields_set}
    if given.keys() - {"name"} and sweep.state not in {SweepState.RUNNING, SweepState.ENDED}:
        raise Conflict(f"The sweep has {sweep.state}; begin another one.")
    columns = {_COLUMNS[name]: value for name, value in given.items()}
    if "max_device_s" in columns and columns["max_device_s"] is not None:
        columns["max_device_s"] *= 3600
    after = {
        name: columns.get(name, getattr(sweep, name))
        for name in ("min_width", "max_width", "max_trials", "max_device_s")
    }
    if not after["min_width"] or not after["max_width"] or after["min_width"] > after["max_width"]:
        raise Malformed("min_width is at most max_width.", fields={"min_width": ["is more than max_width"]})
    if after["max_trials"] is None and after["max_device_s"] is None:
        raise Malformed("A sweep has a budget.", fields={"trials": ["give trials or device_hours"]})
    if sweep.state == SweepState.ENDED and _has_more_budget(sweep, after):
        columns |= {"state": SweepState.RUNNING, "why": {}, "ended_at": None}
    change_columns(sweep, **columns)
    wakeups.advance(sweep.pk)


_COLUMNS = {
    "name": "name",
    "trials": "max_trials",
    "device_hours": "max_device_s",
    "min_width": "min_width",
    "max_width": "max_width",
}


def _has_more_budget(sweep: Sweep, after: Mapping[str, Any]) -> bool:
    trials, device_s = (
        math.inf if after[name] is None else after[name] for name in ("max_trials", "max_device_s")
    )
    used_s = sweep.trials.aggregate(used=Sum("job__attained_gpu_s"))["used"] or 0.0
    return bool(trials > sweep.trials.filter(lost=False).count() and device_s > used_s)


def _validated(model: type[M], data: Mapping[str, Any], what: str) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        fields: dict[str, list[str]] = {}
        for problem in error.errors(include_url=False):
            name, message = ".".join(map(str, problem["loc"]))[:80], problem_text(problem)
            if problem["type"] == "extra_forbidden":
                message = "unknown field; known are " + ", ".join(model.model_fields)
            elif problem["type"] == "missing":
                message = _MISSING.get(name, "is missing")
            elif not name and ": " in message:
                name, message = message.split(": ", 1)
            fields.setdefault(name or what, []).append(message)
        first, messages = next(iter(fields.items()))
        raise Malformed(f"The {what} cannot be read: {first}: {messages[0]}", fields=fields) from None


_MISSING = {
    "direction": "give minimize or maximize",
    "metric": "name the metric that the trials report, such as val/loss",
    "budget": 'give a budget, such as {"trials": 20} or {"device_hours": 8}',
    "job": "give the fields of a trial's job, such as entrypoint and gpus",
}
