"""Why a federation is in its state, and why it stopped a job of its own."""

from berth.language import text
from orchestrator.facts.events import FederationFact
from orchestrator.sentences.events import ended_as
from orchestrator.sentences.table import says


@says(FederationFact.STOPPED_BY)
def _stopped(by: str) -> str:
    return text("Stopped by {by}, with all its jobs.", by=by)


@says(FederationFact.FAILED_AT_START)
def _failed_at_start() -> str:
    return text("Stopped by an error at its start, with all its jobs.")


@says(FederationFact.SERVER_ENDED)
def _server_ended(state: str, error: str) -> str:
    return text(
        "The job of its server has {state}. {error}", state=text(ended_as(state)), error=error
    ).strip()


@says(FederationFact.NOT_KEPT)
def _not_kept(problem: str) -> str:
    return text("All rounds are done, but no model could be made of the result: {problem}", problem=problem)


@says(FederationFact.SITE_OVER)
def _site_over() -> str:
    return text("Its federation is over.")
