"""The caller's secrets for jobs. Values are write-only."""

from datetime import datetime

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.models import JobSecret
from orchestrator.people import secrets

router = Router()


class SecretOut(BaseModel):
    name: str
    created_at: datetime
    changed_at: datetime
    last_used_at: datetime | None


class SecretIn(Body):
    value: StrictStr = Field(description="never shown again")


@router.get("", response=Page[SecretOut])
def list_secrets(request: ApiRequest, paging: Query[Paging]) -> Page[SecretOut]:
    """The names of the caller's secrets."""
    return page(Page[SecretOut], request, JobSecret.objects.filter(owner=request.user), paging, show=_show)


@router.put("/{name}", response=SecretOut)
def keep_secret(request: ApiRequest, name: str, body: SecretIn) -> SecretOut:
    """Store a secret or replace its value; jobs that list it in `secrets` get it as an environment variable."""
    return _show(secrets.keep(request.user, name, body.value))


@router.delete("/{name}", response={204: None})
def forget_secret(request: ApiRequest, name: str) -> HttpResponse:
    """Delete a secret; jobs that name it fail at their next start."""
    secrets.forget(request.user, name)
    return HttpResponse(status=204)


def _show(secret: JobSecret) -> SecretOut:
    return SecretOut(
        name=secret.name,
        created_at=secret.created_at,
        changed_at=secret.changed_at,
        last_used_at=secret.last_used_at,
    )
