"""Where the caller is told about jobs outside of the pages."""

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router

from orchestrator.api.auth import ApiRequest
from orchestrator.api.paging import Page, Paging, page
from orchestrator.api.schemas import NoticeTargetIn, NoticeTargetOut, NoticeTestOut
from orchestrator.models import NoticeTarget
from orchestrator.people.notices import targets

router = Router()


@router.get("", response=Page[NoticeTargetOut])
def list_notification_targets(request: ApiRequest, paging: Query[Paging]) -> object:
    """The caller's addresses, with what is secret in them masked."""
    return page(request, NoticeTarget.objects.filter(user=request.user), paging, show=_show)


@router.post("", response={201: NoticeTargetOut})
def add_notification_target(request: ApiRequest, body: NoticeTargetIn) -> object:
    """Add an address in Apprise's form, such as `slack://...` or `email:ana@lab.org`; it is checked, not written to."""
    return 201, _show(targets.add(request.user, body.url, body.occasions))


@router.delete("/{int:target_id}", response={204: None})
def remove_notification_target(request: ApiRequest, target_id: int) -> object:
    NoticeTarget.objects.filter(pk=target_id, user=request.user).delete()
    return HttpResponse(status=204)


@router.post("/{int:target_id}/test", response=NoticeTestOut)
def test_notification_target(request: ApiRequest, target_id: int) -> object:
    """Send a test now; takes as long as the service does, at most half a minute."""
    error = targets.try_out(get_object_or_404(NoticeTarget, pk=target_id, user=request.user))
    return {"arrived": error is None, "error": error}


def _show(target: NoticeTarget) -> dict[str, object]:
    return {
        "id": target.pk,
        "url": target.shown,
        "occasions": target.occasions,
        "created_at": target.created_at,
        "last_sent_at": target.last_sent_at,
        "last_error": target.last_error or None,
    }
