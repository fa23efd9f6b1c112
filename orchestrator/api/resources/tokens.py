"""The caller's own tokens."""

from datetime import datetime
from typing import Annotated

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.models import AgentRules, Scope, Token
from orchestrator.people import agents, audit, tokens
from orchestrator.spec.field_types import Seconds

router = Router()


class AgentOut(BaseModel):
    """What makes a token an agent's."""

    name: str
    device_hours: float | None = Field(description="of all its jobs; null: no limit")
    device_hours_taken: float = Field(
        description="used by ended jobs, and granted to the others by their time limits"
    )
    width: int = Field(description="devices that its jobs hold at once")
    plan_first: bool = Field(description="whether it submits only what it planned within the last hour")


class AgentIn(Body):
    """Limits of an agent's token."""

    device_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="for all its jobs, which then need a time limit; null: no limit"
    )
    width: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1, description="devices that its jobs hold at once"
    )
    plan_first: bool = Field(True, description="whether it submits only what it planned within the last hour")


class TokenOut(BaseModel):
    id: int
    name: str
    prefix: str
    scope: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    usable: bool
    agent: AgentOut | None = Field(None, description="null: a person's own")


class NewTokenOut(TokenOut):
    token: str = Field(description="shown only now")


class TokenIn(Body):
    name: StrictStr
    scope: Scope = Scope.WRITE
    expires_in_s: Seconds | None = 90 * 24 * 3600
    agent: AgentIn | None = Field(None, description="makes it the token of a program that acts for you")


@router.get("", response=Page[TokenOut])
def list_tokens(request: ApiRequest, paging: Query[Paging]) -> Page[TokenOut]:
    """The caller's tokens, including revoked ones, newest first."""
    return page(
        Page[TokenOut],
        request,
        Token.objects.filter(user=request.user).select_related("agent"),
        paging,
        show=show_token,
    )


@router.post("", response={201: NewTokenOut})
def make_token(request: ApiRequest, body: TokenIn) -> NewTokenOut:
    """Create a token; its text is shown only in this answer. It cannot outlive the token that created it."""
    token, text = tokens.issue(
        request.user,
        name=body.name,
        scope=body.scope,
        life_s=body.expires_in_s,
        at_most=request.token_scope,
        ends_by=request.token_ends_at,
        address=audit.address_of(request),
        agent=None if body.agent is None else tokens.AgentLimits(**body.agent.model_dump()),
    )
    return NewTokenOut(**dict(show_token(token)), token=text)


@router.delete("/{int:token_id}", response={204: None})
def revoke_token(request: ApiRequest, token_id: int) -> HttpResponse:
    """Revoke a token for good; repeating this is harmless."""
    token = get_object_or_404(Token, pk=token_id, user=request.user)
    tokens.revoke(token, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_token(token: Token) -> TokenOut:
    now = timezone.now()
    return TokenOut(
        id=token.pk,
        name=token.name,
        prefix=token.prefix,
        scope=token.scope,
        created_at=token.created_at,
        expires_at=token.expires_at,
        last_used_at=token.last_used_at,
        revoked_at=token.revoked_at,
        usable=token.revoked_at is None and (token.expires_at is None or token.expires_at > now),
        agent=show_agent(getattr(token, "agent", None)),
    )


def show_agent(rules: AgentRules | None) -> AgentOut | None:
    if rules is None:
        return None
    return AgentOut(
        name=rules.token.name,
        device_hours=rules.device_hours,
        device_hours_taken=round(agents.taken_s(rules) / agents.HOUR_S, 3),
        width=rules.width,
        plan_first=rules.plan_first,
    )
