"""Reads the report that the server of a federation keeps; its job may have written anything."""

from pydantic import BaseModel, Field

from orchestrator.models import Federation, Job
from orchestrator.recipes.report import Finite, Text, read_output

REPORT = "federated.json"
MOST_BYTES = 16 << 20


class RoundOut(BaseModel):
    """One round."""

    round: int = Field(description="its number, from 1")
    sites: int = Field(description="whose updates are in the sum")
    seconds: Finite = Field(description="from sending the weights to the new model, measured")
    metrics: dict[Text, Finite] = Field(
        default_factory=dict, max_length=100, description="of the new model on the server's data"
    )
    epsilon: Finite | None = Field(
        None, description="privacy spent by all rounds so far; null: none is promised"
    )


class LostOut(BaseModel):
    """A site that was left out."""

    site: int = Field(description="its number")
    round: int = Field(description="the first round without it")
    why: Text = Field(description="the reason, as a part of a sentence")


class FederatedReport(BaseModel):
    """What the server of a federation has kept so far."""

    rounds: list[RoundOut] = Field(default_factory=list, max_length=100_000, description="in their order")
    lost: list[LostOut] = Field(default_factory=list, max_length=100_000, description="in their order")
    inside: list[int] | None = Field(
        None, max_length=1_000, description="sites that take part after the newest round; null: not known"
    )
    epsilon: Finite | None = Field(None, description="privacy spent; null: none is promised")


def report_of(federation: Federation, server: Job | None) -> FederatedReport:
    """The report of a federation, which grows while it runs."""
    if federation.report:
        return FederatedReport.model_validate(federation.report)
    return (read_report(server) if server is not None else None) or FederatedReport()


def read_report(job: Job) -> FederatedReport | None:
    """The report in a job's output; None without one that can be read."""
    return read_output(job, REPORT, FederatedReport, MOST_BYTES)
