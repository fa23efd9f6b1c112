"""Reads the report that a recipe's program wrote; the job may have written anything."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from orchestrator.exceptions import NotFound
from orchestrator.jobs import results
from orchestrator.models import Job

REPORT = "recipe.json"
MOST_BYTES = 256 << 10
AnyReport = TypeVar("AnyReport", bound=BaseModel)


def _without_nul(text: str) -> str:
    """PostgreSQL keeps no NUL in a text."""
    return text.replace("\0", "")


Text = Annotated[str, Field(max_length=1_000), AfterValidator(_without_nul)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class MetricOut(BaseModel):
    """A metric with its 95 % confidence interval; null where it is not a mean over samples."""

    name: Text = Field(description="such as accuracy, loss, mse; or a name of the owner's own function")
    value: Finite = Field(description="mean over the evaluation data")
    low: Finite | None = Field(None, description="lower end of the interval")
    high: Finite | None = Field(None, description="upper end of the interval")


class MeasuredOut(BaseModel):
    metrics: list[MetricOut] = Field(max_length=100, description="the first is the one that counts")
    size_bytes: int = Field(description="of the weights as a file")
    latency_ms: Finite = Field(description="median for one sample")
    memory_bytes: int = Field(description="on a GPU the peak while the model answers, else its weights")


class GateOut(BaseModel):
    metric: Text = Field(description="the metric that decides")
    before: Finite | None = Field(None, description="value of the model it was made from")
    after: Finite = Field(description="value of the result")
    limit: Finite | None = Field(None, description="worst value that passes; null: none was asked for")
    higher_is_better: bool = Field(description="whether the metric should be high")
    passed: bool = Field(description="whether the result may become a model")


class ReportOut(BaseModel):
    """What a recipe measured before and after."""

    before: MeasuredOut | None = Field(None, description="the model it was made from")
    after: MeasuredOut | None = Field(None, description="the result, or the model that was measured")
    gate: GateOut | None = Field(None, description="null: the recipe has none")
    facts: dict[Text, Finite | Text] = Field(
        default_factory=dict, max_length=100, description="figures of this recipe alone, by name"
    )
    left_out: list[Text] = Field(
        default_factory=list, max_length=10_000, description="parts that stayed as they were"
    )
    error: Text | None = Field(None, description="why the recipe could not work; null: it could")
    checkpoint: Annotated[Text, Field(max_length=100)] | None = Field(
        None, description="of the recipe's job, with the result"
    )


def read_report(job: Job) -> ReportOut | None:
    """The report in a job's output; None without one that can be read."""
    return read_output(job, REPORT, ReportOut, MOST_BYTES)


def read_output(job: Job, name: str, kind: type[AnyReport], most_bytes: int) -> AnyReport | None:
    """A report of this kind in a job's output; None without one that can be read, or above ``most_bytes``."""
    try:
        _, file = results.open_result(job, name, "output")
    except NotFound:
        return None
    with file:
        data = file.read(most_bytes + 1)
    try:
        return kind.model_validate_json(data) if len(data) <= most_bytes else None
    except ValidationError:
        return None
