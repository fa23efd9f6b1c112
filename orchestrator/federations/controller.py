"""Tells the server of a federation which sites have ended, takes over what came of the rounds, and stops what is left.

Everything is derived from rows, and each step may be repeated; the agent calls ``advance`` every second.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connection
from django.utils import timezone

from orchestrator.exceptions import OrchestratorError
from orchestrator.facts.events import FederationFact
from orchestrator.facts.record import NOTHING, Fact, fact
from orchestrator.federations import invitations
from orchestrator.federations.report import read_report
from orchestrator.jobs import exchanges, lifecycle, promotion
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.models import (
    FINAL_STATES,
    Federation,
    FederationInvitation,
    FederationMember,
    FederationState,
    Job,
    JobState,
    ModelVersion,
)
from orchestrator.sentences import say_json
from orchestrator.sentences.events import ended_as
from orchestrator.store.checkpoints.manifest import NotVerified

logger = logging.getLogger(__name__)

ACTOR = "federation"
WATCHED_SINCE = timezone.now()  # while this server was down, no site could be heard
ENDS_ITSELF = timedelta(seconds=30)  # a site, once its server has told it that the rounds are over


def at_work() -> Iterable[Federation]:
    """The federations that ``advance`` may have to do something for."""
    return Federation.objects.filter(cleared=False).select_related("owner")


def advance_all(federations: Iterable[Federation]) -> None:
    """In a thread of the agent: making a model of a result copies files.

    One federation that cannot be kept, because what its sites sent is broken, leaves the others alone.
    """
    try:
        for federation in federations:
            try:
                advance(federation, timezone.now())
            except Exception:
                logger.exception("Keeping the federation %s failed; retrying", federation)
    except Exception:
        logger.exception("Keeping federations failed; retrying")
    finally:
        connection.close()


def advance(federation: Federation, now: datetime) -> None:
    """Bring one federation up to date."""
    members = list(FederationMember.objects.filter(federation=federation).select_related("job__owner"))
    server = next((each.job for each in members if each.number is None), None)
    for member in members:
        if member.number is not None and member.job.state in FINAL_STATES:
            how = (
                "has ended" if member.job.state == JobState.SUCCEEDED else f"has {ended_as(member.job.state)}"
            )
            exchanges.tell_ended(federation.pk, member.number, f"its job {how}")
    if not federation.has_ended:
        _tell_of_remote_sites(federation, now)
    if not federation.has_ended and server is not None and server.state in FINAL_STATES:
        _take_over(federation, server)
    if not federation.has_ended:
        return
    if now - (federation.ended_at or now) > ENDS_ITSELF or federation.state != FederationState.ENDED:
        stop_jobs(federation)
    if all(member.job.state in FINAL_STATES for member in members):
        exchanges.remove(federation.pk)
        _change(federation, cleared=True)


def _tell_of_remote_sites(federation: Federation, now: datetime) -> None:
    """Tell the server's job of sites at other Berths that no longer take part, so that no round waits for them."""
    if not (numbers := federation.remote_numbers):
        return
    rows = {each.number: each for each in FederationInvitation.objects.filter(federation=federation)}
    for number in numbers:
        if why := invitations.why_over(federation, rows.get(number), now, WATCHED_SINCE):
            exchanges.tell_ended(federation.pk, number, why)


def _take_over(federation: Federation, server: Job) -> None:
    """Keep the report of a server whose job has ended, and make a model of its result."""
    if server.state != JobState.SUCCEEDED:
        state = FederationState.STOPPED if server.state == JobState.CANCELLED else FederationState.FAILED
        error = say_json(server.ending) or server.exit_detail
        end(federation, state, fact(FederationFact.SERVER_ENDED, state=server.state, error=error))
        return
    result, why = None, NOTHING
    if federation.result_name:
        try:
            result = _promote(federation, server)
        except (OrchestratorError, NotVerified) as error:
            why = fact(FederationFact.NOT_KEPT, problem=str(error))
    end(federation, FederationState.ENDED, why, result=result)


def _promote(federation: Federation, server: Job) -> ModelVersion:
    return promotion.promote(
        server.owner,
        server,
        name=federation.result_name,
        description=f"{federation.rounds} federated rounds of {federation.sites} sites",
    )


def end(
    federation: Federation, state: FederationState, why: Fact, *, result: ModelVersion | None = None
) -> None:
    """Write how a federation ended, with the report that its server has left so far."""
    server = FederationMember.objects.filter(federation=federation, number=None).select_related("job").first()
    report = read_report(server.job) if server is not None else None
    _change(
        federation,
        state=state,
        why=why.as_json(),
        result=result,
        report=report.model_dump(mode="json") if report else {},
        ended_at=timezone.now(),
    )


def stop_jobs(federation: Federation) -> None:
    """Stop all jobs that are still open; repeating this is harmless."""
    members = FederationMember.objects.filter(federation=federation)
    for member in members.exclude(job__state__in=(*FINAL_STATES, JobState.STOPPING)).select_related("job"):
        try:
            lifecycle.cancel(member.job, by=ACTOR, why=fact(FederationFact.SITE_OVER))
        except IllegalTransition:
            logger.info("%s ended before its federation stopped it.", member.job)


def _change(federation: Federation, **changes: object) -> None:
    for name, value in changes.items():
        setattr(federation, name, value)
    federation.save(update_fields=list(changes))
