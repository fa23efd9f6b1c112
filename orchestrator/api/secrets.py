"""The caller's secrets for jobs: names only; a value goes in and never comes out."""

from django.http import HttpResponse
from ninja import Query, Router

from orchestrator.api.auth import ApiRequest
from orchestrator.api.paging import Page, Paging, page
from orchestrator.api.schemas import SecretIn, SecretOut
from orchestrator.models import JobSecret
from orchestrator.people import secrets

router = Router()


@router.get("", response=Page[SecretOut])
def list_secrets(request: ApiRequest, paging: Query[Paging]) -> object:
    """The names of the caller's secrets."""
    return page(request, JobSecret.objects.filter(owner=request.user), paging, show=_show)


@router.put("/{name}", response=SecretOut)
def keep_secret(request: ApiRequest, name: str, body: SecretIn) -> object:
    """Store a secret, or replace its value; jobs name it in `secrets` and find it in their environment."""
    return _show(secrets.keep(request.user, name, body.value))


@router.delete("/{name}", response={204: None})
def forget_secret(request: ApiRequest, name: str) -> object:
    """Delete a secret; jobs that name it fail at their next start."""
    secrets.forget(request.user, name)
    return HttpResponse(status=204)


def _show(secret: JobSecret) -> dict[str, object]:
    return {
        "name": secret.name,
        "created_at": secret.created_at,
        "changed_at": secret.changed_at,
        "last_used_at": secret.last_used_at,
    }
