"""What a person asks of a sweep, as JSON, with everything that can be checked without the database."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

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
from pydantic_core import ErrorDetails

from orchestrator.exceptions import Malformed, Sentence, after_field
from orchestrator.spec.field_types import Name
from orchestrator.spec.job_spec import problem_text
from orchestrator.sweeps.core.optuna_samplers import FOR_ONE_METRIC

MOST_TRIALS = 10_000
MOST_WIDTH = 1000
MOST_METRICS = 5
DEFAULT_WIDTH = 4

M = TypeVar("M", bound=BaseModel)
Direction = Literal["minimize", "maximize"]
SamplerName = Literal["auto", "random", "grid", "tpe", "gp", "cmaes", "nsga2"]
MetricName = Annotated[StrictStr, Field(min_length=1, max_length=200)]
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


class MetricSpec(BaseModel):
    """A metric as the trials report it, and which values of it are better."""

    model_config = ConfigDict(extra="forbid")

    name: MetricName
    direction: Annotated[Direction, Field(description="minimize or maximize")]


class GainRule(BaseModel):
    """Ends a sweep where this much more device time is expected to improve the metric by less than ``gain``."""

    model_config = ConfigDict(extra="forbid")

    device_hours: Annotated[DeviceHours, Field(description="the further device-hours that the rule looks at")]
    gain: Annotated[
        float,
        Field(
            gt=0, allow_inf_nan=False, description="the smallest improvement of the metric that is worth them"
        ),
    ]


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
    ready: StrictStr | None = Field(
        None,
        max_length=200,
        description="a space by name, lr-range or lr-batch; with the script's own names: lr-batch:rate,batch",
    )
    metric: MetricName | None = Field(None, description="as the trials report it")
    direction: Direction | None = None
    metrics: Annotated[list[MetricSpec], Field(max_length=MOST_METRICS)] = Field(
        default_factory=list, description="several, in the place of metric and direction"
    )
    budget: Budget
    stop_when: GainRule | None = Field(
        None, description="end it where device_hours more are expected to gain less"
    )
    warm_start: StrictStr | None = Field(
        None, description="an earlier sweep to learn from, or auto: all of the same code and space"
    )
    sampler: SamplerName = "auto"
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = Field(
        None, description="null: chosen, and shown"
    )
    min_width: Width = Field(1, description="trials that may wait for devices at once")
    max_width: Width = Field(
        DEFAULT_WIDTH, description="most trials at once; the sweep grows into free devices"
    )
    hand_over: Literal["args", "env", "json"] = Field(
        "args", description="--name value, variables in capitals, or SWEEP_SETTINGS alone"
    )
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
            raise ValueError(
                Sentence(
                    "min_width: {min_width} is more than max_width, which is {max_width}",
                    min_width=self.min_width,
                    max_width=self.max_width,
                )
            )
        if self.metrics:
            _check_metrics(self)
        elif self.metric is None:
            raise ValueError(Sentence("metric: {missing}", missing=_MISSING["metric"]))
        elif self.direction is None:
            raise ValueError(Sentence("direction: {missing}", missing=_MISSING["direction"]))
        return self

    def all_metrics(self) -> list[MetricSpec]:
        """The metrics, however they were given."""
        if self.metric is None or self.direction is None:
            return self.metrics
        return [MetricSpec(name=self.metric, direction=self.direction)]


def _check_metrics(spec: SweepSpec) -> None:
    """Check what several metrics exclude."""
    if spec.metric is not None or spec.direction is not None:
        raise ValueError("metrics: give metrics, or metric with direction, and not both")
    names = [metric.name for metric in spec.metrics]
    if len(set(names)) < len(names):
        raise ValueError("metrics: a metric is there twice")
    if len(names) > 1 and spec.sampler in FOR_ONE_METRIC:
        raise ValueError(
            Sentence(
                "sampler: {sampler} knows one metric only; take auto, nsga2, tpe or random",
                sampler=spec.sampler,
            )
        )
    if len(names) > 1 and spec.stop_when is not None:
        raise ValueError("stop_when: it is for one metric; leave it out, or give one metric")


class SweepChanges(BaseModel):
    """What can change while a sweep runs; a larger budget continues one that has ended by it."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    trials: Trials | None = None
    device_hours: DeviceHours | None = None
    stop_when: GainRule | None = None
    min_width: Width | None = None
    max_width: Width | None = None


def parse(data: Any) -> SweepSpec:
    """Read a sweep from JSON.

    Raises:
        Malformed: ``fields`` holds the messages by field.
    """
    if not isinstance(data, Mapping):
        raise Malformed("A sweep is a JSON object with job, space, metric, direction and budget.")
    return validated(SweepSpec, data, "sweep")


def validated(model: type[M], data: Mapping[str, Any], what: str) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        fields: dict[str, list[str]] = {}
        for problem in error.errors(include_url=False):
            name, message = _named_problem(model, ".".join(map(str, problem["loc"]))[:80], problem)
            fields.setdefault(name or what, []).append(message)
        first, messages = next(iter(fields.items()))
        raise Malformed(
            Sentence(
                "The {what} cannot be read: {first}: {messages}", what=what, first=first, messages=messages[0]
            ),
            fields=fields,
        ) from None


def _named_problem(model: type[BaseModel], name: str, problem: ErrorDetails) -> tuple[str, str]:
    """The field of one of pydantic's errors, and what to give there."""
    kind, message = problem["type"], problem_text(problem)
    last = name.rpartition(".")[2]
    if kind == "extra_forbidden":
        known = _PARTS.get(name.partition(".")[0], model) if "." in name else model
        return name, Sentence("unknown field; known are {known}", known=", ".join(known.model_fields))
    if kind == "missing":
        return name, _MISSING.get(last, "is missing")
    if kind in {"dict_type", "model_type"}:
        return name, _MISSING.get(name, message)
    if hint := _LIMITS.get((last, kind)):
        return name, Sentence("{message}; {hint}", message=message, hint=hint)
    if not name and ": " in message:
        name, message = after_field(message)
    return name, message


_PARTS: Mapping[str, type[BaseModel]] = {"budget": Budget, "metrics": MetricSpec, "stop_when": GainRule}
_MISSING = {
    "direction": "give minimize or maximize",
    "metric": "name the metric that the trials report, such as val/loss",
    "budget": 'give a budget, such as {"trials": 20} or {"device_hours": 8}',
    "job": "give the fields of a trial's job, such as entrypoint and gpus",
    "space": 'give settings by name, such as {"lr": {"type": "float", "low": 0.001, "high": 0.1}}',
}
# What to do about a number outside its limits, after pydantic's words for the limit.
_LIMITS = {
    ("trials", "greater_than_equal"): "a budget covers at least one trial",
    ("trials", "less_than_equal"): "continue in a second sweep that learns from this one (warm_start)",
    ("device_hours", "greater_than"): "give the hours of at least one trial, such as 0.5",
}
