"""Why a service is in its state, and why it stopped a replica."""

from berth import words
from berth.language import text
from orchestrator.facts.events import ServiceFact
from orchestrator.sentences.table import says


@says(ServiceFact.STOPPED_BY)
def _stopped(by: str) -> str:
    return text("Stopped by {by}. It answers nothing until it is started again.", by=by)


@says(ServiceFact.DIES_AGAIN)
def _dies_again(times: int, error: str) -> str:
    return text(
        "{times} replicas in a row have failed, so no further one is begun until it is started "
        "again. The last one: {error}",
        times=times,
        error=error,
    )


@says(ServiceFact.CANNOT_SUBMIT)
def _cannot_submit(problem: str) -> str:
    return text("No replica can be submitted: {problem}", problem=problem)


@says(ServiceFact.UPDATE_FAILED)
def _update_failed(times: int, error: str) -> str:
    return text(
        "{times} replicas of its newest revision have failed; the one before goes on answering. "
        "The last one: {error}",
        times=times,
        error=error,
    )


@says(ServiceFact.REPLICA_IDLE)
def _idle(idle_s: float) -> str:
    return text(
        "Its service had no request for {idle_s}; the next one starts it again.",
        idle_s=words.duration(idle_s),
    )


@says(ServiceFact.REPLICA_REPLACED)
def _replaced() -> str:
    return text("A replica of a newer revision answers in its place.")


@says(ServiceFact.REPLICA_NOT_NEEDED)
def _not_needed() -> str:
    return text("Its service was stopped, or needs fewer replicas.")
