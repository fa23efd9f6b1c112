"""What lists say of a federation: its jobs, its rounds, and the sites that were left out."""

from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser, User

from orchestrator.exceptions import NotFound, Sentence
from orchestrator.federations.report import FederatedReport, RoundOut, report_of
from orchestrator.models import Federation, FederationMember, Job

SHORTEST_PART = 4


@dataclass(frozen=True, slots=True)
class SiteRow:
    """One site: its job, and why it was left out of the sums."""

    number: int
    job: Job
    left_out: str  # empty: it takes part


@dataclass(frozen=True, slots=True)
class FederationRow:
    """One federation for lists."""

    federation: Federation
    server: Job | None
    sites: tuple[SiteRow, ...]
    report: FederatedReport

    @property
    def newest(self) -> RoundOut | None:
        return self.report.rounds[-1] if self.report.rounds else None


def row_of(federation: Federation) -> FederationRow:
    members = list(FederationMember.objects.filter(federation=federation).select_related("job"))
    server = next((each.job for each in members if each.number is None), None)
    report = report_of(federation, server)
    left_out = {each.site: f"left out from round {each.round} on: {each.why}" for each in report.lost}
    sites = (
        SiteRow(each.number, each.job, left_out.get(each.number, ""))
        for each in members
        if each.number is not None
    )
    return FederationRow(federation, server, tuple(sites), report)


def find(user: AbstractBaseUser, wanted: str) -> Federation:
    """Find a federation by its id, or by an unambiguous part of at least four characters.

    Raises:
        NotFound: this person may see no such federation, or several.
    """
    rows = Federation.objects.visible_to(user).select_related("owner", "result__dataset__owner")
    try:
        found = list(rows.filter(pk=UUID(wanted)))
    except ValueError:
        part = wanted.lower()
        found = [
            each
            for each in rows.order_by("-pk")[:1000]
            if len(part) >= SHORTEST_PART and part in str(each.pk)
        ]
    if len(found) != 1:
        problem = "There is no federation" if not found else "There are several federations"
        raise NotFound(
            Sentence("{problem} {wanted!r}, or you may not see it.", problem=problem, wanted=wanted[:64])
        )
    return found[0]


def federations_of(user: User) -> list[Federation]:
    """The federations that a person may see, newest first."""
    return list(Federation.objects.visible_to(user).select_related("owner", "result__dataset__owner"))
