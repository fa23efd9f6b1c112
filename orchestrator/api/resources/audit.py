"""The audit: who did what. Read-only, for admins."""

from datetime import UTC, datetime

from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ADMINS, ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Moment
from orchestrator.models import AuditEntry

router = Router()


class AuditFilters(Paging):
    """``action`` matches prefixes: ``token`` finds token.made and token.revoked."""

    actor: str | None = Field(None, max_length=150)
    action: str | None = Field(None, max_length=32)
    subject: str | None = Field(None, max_length=200)
    start: Moment | None = Field(None, alias="from", description="entries from this time on")
    end: Moment | None = Field(None, alias="to", description="entries before this time")


class AuditOut(BaseModel):
    id: int
    time: datetime
    actor: str
    action: str
    subject: str
    text: str
    address: str


@router.get("", response=Page[AuditOut], auth=ADMINS)
def list_audit(request: ApiRequest, filters: Query[AuditFilters]) -> Page[AuditOut]:
    """The audit, newest first."""
    rows = AuditEntry.objects.all()
    if filters.actor is not None:
        rows = rows.filter(actor=filters.actor)
    if filters.action is not None:
        rows = rows.filter(action__startswith=filters.action)
    if filters.subject is not None:
        rows = rows.filter(subject__contains=filters.subject)
    if filters.start is not None:
        rows = rows.filter(at__gte=datetime.fromtimestamp(filters.start, tz=UTC))
    if filters.end is not None:
        rows = rows.filter(at__lt=datetime.fromtimestamp(filters.end, tz=UTC))
    return page(Page[AuditOut], request, rows, filters, show=show_entry)


def show_entry(entry: AuditEntry) -> AuditOut:
    return AuditOut(
        id=entry.pk,
        time=entry.at,
        actor=entry.actor,
        action=entry.action,
        subject=entry.subject,
        text=entry.text,
        address=entry.address,
    )
