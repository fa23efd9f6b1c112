"""Why a service is in its state, and why it stopped a replica."""

from berth import words
from orchestrator.facts.events import ServiceFact
from orchestrator.sentences.table import says


@says(ServiceFact.STOPPED_BY)
def _stopped(by: str) -> str:
    return f"Stopped by {by}. It answers nothing until it is started again."


@says(ServiceFact.DIES_AGAIN)
def _dies_again(times: int, error: str) -> str:
    return f"{times} replicas in a row have failed, so no further one is begun until it is started again. The last one: {error}"


@says(ServiceFact.CANNOT_SUBMIT)
def _cannot_submit(problem: str) -> str:
    return f"No replica can be submitted: {problem}"


@says(ServiceFact.UPDATE_FAILED)
def _update_failed(times: int, error: str) -> str:
    return f"{times} replicas of its newest revision have failed; the one before goes on answering. The last one: {error}"


@says(ServiceFact.REPLICA_IDLE)
def _idle(idle_s: float) -> str:
    return f"Its service had no request for {words.duration(idle_s)}; the next one starts it again."


@says(ServiceFact.REPLICA_REPLACED)
def _replaced() -> str:
    return "A replica of a newer revision answers in its place."


@says(ServiceFact.REPLICA_NOT_NEEDED)
def _not_needed() -> str:
    return "Its service was stopped, or needs fewer replicas."
