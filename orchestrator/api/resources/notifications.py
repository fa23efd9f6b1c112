"""Addresses to which the caller's notifications go."""

from datetime import datetime

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.facts.record import Fact, Facts
from orchestrator.models import NoticeTarget
from orchestrator.people.notices import targets

router = Router()


class NoticeTargetOut(BaseModel):
    id: int
    url: str = Field(description="masked")
    occasions: list[str]
    created_at: datetime
    last_sent_at: datetime | None
    last_error: str | None = Field(description="of the newest notification; null: it arrived")
    last_error_code: str = Field(description="the same for programs; empty: it arrived")
    last_error_facts: Facts = Field(description="what last_error is made of")


class NoticeTargetIn(Body):
    url: StrictStr
    occasions: list[StrictStr] = ["finished", "failed", "warning"]


class NoticeTestOut(BaseModel):
    arrived: bool
    error: str | None


@router.get("", response=Page[NoticeTargetOut])
def list_notification_targets(request: ApiRequest, paging: Query[Paging]) -> Page[NoticeTargetOut]:
    """The caller's addresses, with secrets masked."""
    return page(
        Page[NoticeTargetOut], request, NoticeTarget.objects.filter(user=request.user), paging, show=_show
    )


@router.post("", response={201: NoticeTargetOut})
def add_notification_target(request: ApiRequest, body: NoticeTargetIn) -> NoticeTargetOut:
    """Add an address in Apprise's form, such as `slack://...` or `email:ana@lab.org`; the address is checked, nothing is sent."""
    return _show(targets.add(request.user, body.url, body.occasions))


@router.delete("/{int:target_id}", response={204: None})
def remove_notification_target(request: ApiRequest, target_id: int) -> HttpResponse:
    NoticeTarget.objects.filter(pk=target_id, user=request.user).delete()
    return HttpResponse(status=204)


@router.post("/{int:target_id}/test", response=NoticeTestOut)
def test_notification_target(request: ApiRequest, target_id: int) -> NoticeTestOut:
    """Send a test message now; waits for the service, at most half a minute."""
    error = targets.try_out(get_object_or_404(NoticeTarget, pk=target_id, user=request.user))
    return NoticeTestOut(arrived=error is None, error=error)


def _show(target: NoticeTarget) -> NoticeTargetOut:
    return NoticeTargetOut(
        id=target.pk,
        url=target.shown,
        occasions=target.occasions,
        created_at=target.created_at,
        last_sent_at=target.last_sent_at,
        last_error=target.last_error or None,
        last_error_code=Fact.read(target.last_why).code,
        last_error_facts=dict(Fact.read(target.last_why).facts),
    )
