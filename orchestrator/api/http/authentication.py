"""Who may call what: one gate in front of every route except health; it denies by default."""

from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from orchestrator.api.http import rate
from orchestrator.api.http.errors import Unauthenticated
from orchestrator.exceptions import Forbidden, Sentence
from orchestrator.models import Scope
from orchestrator.people import agents, rights, tokens

API = "/api/v1"
SITE_PREFIX = "bsite_"  # of the secrets of sites at other Berths, which open their door and nothing else
SAFE_METHODS = frozenset({"GET", "HEAD"})
# Query parameters that carry tokens elsewhere. Addresses end up in logs and histories.
_TOKEN_PARAMETERS = frozenset(
    {"token", "access_token", "auth_token", "api_token", "api_key", "authorization"}
)
_HOW = "Send 'Authorization: Token <token>'; create a token on your account page."


class ApiRequest(HttpRequest):
    """A request that passed the gate."""

    user: User  # never anonymous behind the gate
    token_scope: str  # what the credentials allow: read, write or admin
    token_ends_at: datetime | None  # None: a session, or a token that never expires


class TokenOrSession(AuthBase):
    """Authenticate by a token in the header, or by the browser's session with its CSRF token.

    Reading needs the scope read, everything else the scope write. A gate for operators needs the scope admin and
    a person who operates at least one pool (the route checks which); a gate for hosts needs an operator of every
    pool, and a gate for admins an admin.
    """

    openapi_type = "apiKey"
    openapi_in = "header"
    openapi_name = "Authorization"
    openapi_description = "`Token <token>`, or `Bearer <token>`; a browser may use its session instead."
    csrf = True  # tells ninja's docs page to send the CSRF token along

    def __init__(
        self, *, for_operators: bool = False, for_hosts: bool = False, for_admins: bool = False
    ) -> None:
        self.for_operators = for_operators
        self.for_hosts = for_hosts
        self.for_admins = for_admins
        super().__init__()

    def __call__(self, request: HttpRequest) -> User:
        """Let the request pass.

        Raises:
            Unauthenticated: the credentials are missing or invalid.
            Forbidden: the credentials do not allow this, or a session came without its CSRF token.
            TooMany: the person sends requests too fast.
        """
        user, scope, ends_at = _identify(request)
        rate.requests.take(user.pk)
        if agents.agent_of(user) is not None:
            agents.check_route(request.method or "", request.path_info.removeprefix(API))
        needed = Scope.READ if request.method in SAFE_METHODS else Scope.WRITE
        if self.for_operators or self.for_hosts or self.for_admins:
            needed = Scope.ADMIN
        _check_scope(user, scope, needed)
        if self.for_hosts:
            rights.check_host(user)
        if self.for_admins:
            rights.check_admin(user)
        gated: Any = request
        gated.user, gated.token_scope, gated.token_ends_at = user, scope, ends_at
        return user


def let_in(header: str, method: str, path: str) -> User:
    """The holder of the token in an Authorization header, who may change things; for addresses outside Django.

    Args:
        path: below the API's prefix, such as ``/jobs``.

    Raises:
        Unauthenticated, Forbidden, TooMany: as ``TokenOrSession``.
    """
    user, scope, _ = _read_token(header)
    rate.requests.take(user.pk)
    if agents.agent_of(user) is not None:
        agents.check_route(method, path)
    _check_scope(user, scope, Scope.WRITE)
    return user


def _check_scope(user: User, scope: str, needed: str) -> None:
    # Everybody may read, so most requests skip the query for the role.
    if needed != Scope.READ and not tokens.allows(rights.widest_scope(user), needed):
        raise Forbidden(_role_too_low(user, needed))
    if not tokens.allows(scope, needed):
        raise Forbidden(
            Sentence(
                "This token has the scope {scope}, but this needs {needed}. Create a token with that scope on the Account page.",
                scope=scope,
                needed=needed,
            )
        )


def _identify(request: HttpRequest) -> tuple[User, str, datetime | None]:
    if not _TOKEN_PARAMETERS.isdisjoint(name.lower() for name in request.GET):
        raise Unauthenticated(f"Tokens in the address are refused, because addresses are logged. {_HOW}")
    if (header := request.headers.get("Authorization")) is not None:
        return _read_token(header)
    user = request.user
    if not isinstance(user, User) or not user.is_authenticated:
        raise Unauthenticated(f"You are not logged in. {_HOW}")
    if check_csrf(request) is not None:
        raise Forbidden("The page's CSRF token is missing or has expired. Reload the page and try again.")
    return user, rights.widest_scope(user), None


def _role_too_low(user: User, needed: str) -> str:
    """Say that the person's role forbids this, whichever credentials they use."""
    if needed == Scope.WRITE:
        return rights.why_read_only(user)
    return "Only operators may do this. Ask the person who runs this server."


def _read_token(header: str) -> tuple[User, str, datetime | None]:
    """Identify the caller by the token alone; cookies are ignored."""
    text = tokens.in_header(header)
    if text is None:
        raise Unauthenticated(f"The Authorization header must begin with 'Token ' or 'Bearer '. {_HOW}")
    token = tokens.authenticate(text)
    if token is None:
        raise Unauthenticated(f"This token is unknown, expired or revoked. {_HOW}")
    user: Any = token.user
    user.agent = getattr(token, "agent", None)
    return token.user, token.scope, token.expires_at


SIGNED_IN = TokenOrSession()
OPERATORS = TokenOrSession(for_operators=True)
HOSTS = TokenOrSession(for_hosts=True)
ADMINS = TokenOrSession(for_admins=True)
