"""The caller's own tokens."""

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router

from orchestrator.api.auth import ApiRequest
from orchestrator.api.paging import Page, Paging, page
from orchestrator.api.schemas import NewTokenOut, TokenIn, TokenOut
from orchestrator.models import Token
from orchestrator.people import audit, tokens

router = Router()


@router.get("", response=Page[TokenOut])
def list_tokens(request: ApiRequest, paging: Query[Paging]) -> object:
    """The caller's tokens, revoked ones included; newest first."""
    return page(request, Token.objects.filter(user=request.user), paging, show=show_token)


@router.post("", response={201: NewTokenOut})
def make_token(request: ApiRequest, body: TokenIn) -> object:
    """Make a token; its text is in this answer and nowhere else.  One made with a token expires with it at the latest."""
    token, text = tokens.issue(
        request.user,
        name=body.name,
        scope=body.scope,
        life_s=body.expires_in_s,
        at_most=request.token_scope,
        ends_by=request.token_ends_at,
        address=audit.address_of(request),
    )
    return {**show_token(token), "token": text}


@router.delete("/{int:token_id}", response={204: None})
def revoke_token(request: ApiRequest, token_id: int) -> object:
    """Revoke a token for good; revoking twice is harmless."""
    token = get_object_or_404(Token, pk=token_id, user=request.user)
    tokens.revoke(token, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_token(token: Token) -> dict[str, object]:
    now = timezone.now()
    return {
        "id": token.pk,
        "name": token.name,
        "prefix": token.prefix,
        "scope": token.scope,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
        "usable": token.revoked_at is None and (token.expires_at is None or token.expires_at > now),
    }
