"""What lists say of a federation: its jobs, its rounds, and the sites that were left out."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser, User
from django.utils import timezone

from orchestrator.exceptions import NotFound, Sentence
from orchestrator.federations.report import FederatedReport, LostOut, RoundOut, report_of
from orchestrator.jobs import exchanges
from orchestrator.models import Federation, FederationInvitation, FederationMember, Job

SHORTEST_PART = 4


class Part(StrEnum):
    """What part a site has in the rounds."""

    WAITS = "waits"
    TAKES_PART = "takes_part"
    LEFT_OUT = "left_out"
    TOOK_PART = "took_part"
    IN_NO_ROUND = "in_no_round"  # it joined, and was left out before its first round ended
    NEVER_JOINED = "never_joined"


@dataclass(frozen=True, slots=True)
class SiteRow:
    """One site: its job, or its invitation to another Berth, and why it was left out of the sums."""

    number: int
    job: Job | None  # None: it is at another Berth
    invitation: FederationInvitation | None  # None: it is a job here, or nobody was invited yet
    part: Part
    left_out: str  # empty: it takes part

    @property
    def name(self) -> str:
        return self.invitation.name if self.invitation else ""

    @property
    def state(self) -> str:
        """Of its job, or of its invitation."""
        if self.job is not None:
            return self.job.state
        row = self.invitation
        if row is None:
            return "open"
        if row.revoked_at is not None:
            return "revoked"
        if row.joined_at is not None:
            return "joined"
        return "expired" if row.expires_at <= timezone.now() else "invited"

    @property
    def may_be_invited(self) -> bool:
        """Whether a link, or another one, can be made."""
        return self.job is None and self.part == Part.WAITS and self.state in {"open", "invited"}

    @property
    def may_be_revoked(self) -> bool:
        return self.invitation is not None and self.state in {"invited", "joined"} and not self.left_out


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
    back = set(report.inside or ())  # a site that was left out and has come back takes part
    lost = {each.site: each for each in report.lost if each.site not in back}
    jobs = {each.number: each.job for each in members if each.number is not None}
    invited = {each.number: each for each in FederationInvitation.objects.filter(federation=federation)}
    told = {number: exchanges.why_told(federation.pk, number) for number in federation.remote_numbers}
    sites = []
    for number in (*jobs, *federation.remote_numbers):
        one = lost.get(number)
        left_out = _left_out(one) if one else told.get(number, "")
        part = _part(federation, report, jobs.get(number), invited.get(number), left_out, one)
        sites.append(SiteRow(number, jobs.get(number), invited.get(number), part, left_out))
    return FederationRow(federation, server, tuple(sites), report)


def _left_out(site: LostOut) -> Sentence:
    return Sentence("left out from round {round} on: {why}", round=site.round, why=site.why)


def _part(
    federation: Federation,
    report: FederatedReport,
    job: Job | None,
    row: FederationInvitation | None,
    left_out: str,
    lost: LostOut | None,
) -> Part:
    if job is None and (row is None or row.joined_at is None):
        over = federation.has_ended or left_out or (row is not None and row.revoked_at is not None)
        return Part.NEVER_JOINED if over else Part.WAITS
    if left_out or (row is not None and row.revoked_at is not None):
        return Part.LEFT_OUT if _was_in_a_round(report, job, lost) else Part.IN_NO_ROUND
    if federation.has_ended:
        return Part.TOOK_PART if report.rounds or job is not None else Part.IN_NO_ROUND
    return Part.TAKES_PART if report.rounds or job is not None else Part.WAITS


def _was_in_a_round(report: FederatedReport, job: Job | None, lost: LostOut | None) -> bool:
    if job is not None:
        return True
    first = next((each.round for each in report.rounds), None)
    return first is not None and (lost is None or lost.round > first)


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
