"""``/mcp``: agents reach REST by MCP, behind the same tokens; needs the extra ``mcp``.

A tool's requests go through Django's own handler with the caller's token, so that rights, limits, rates and the audit
are the same as in REST, and nothing is reachable here that is not reachable there.
"""

import asyncio
import importlib.util
import logging
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from channels.db import database_sync_to_async
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http.request import split_domain_port, validate_host

from berth.agents.looking import Rest, ToolError
from orchestrator.api.http import rate
from orchestrator.api.http.connections import Application, Receive, Scope, Send, refuse_at_once
from orchestrator.api.http.errors import Unauthenticated, WrongMethod
from orchestrator.exceptions import Malformed, OrchestratorError
from orchestrator.people import tokens

if TYPE_CHECKING:
    import httpx

PATH = "/mcp"
_HOW = "Send 'Authorization: Bearer <token>'; create a token on your account page."


class NotInstalled(OrchestratorError):
    """The extra is not there."""

    code = "not_installed"
    status = 501


class AgentsDoor:
    """Serve ``/mcp`` to callers with a token; everything else goes to the application behind it."""

    def __init__(self, application: Application, *, sdk: str = "mcp") -> None:
        self._application = application
        self._sdk = sdk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") != PATH:
            await self._application(scope, receive, send)
            return
        try:
            check_installed(self._sdk)
            await database_sync_to_async(_check)(scope)
        except OrchestratorError as error:
            await refuse_at_once(send, error)
            return
        manager = await asyncio.to_thread(_make_manager)
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def _check(scope: Scope) -> None:
    """Let a request pass that could also call REST.

    Raises:
        Malformed, WrongMethod, Unauthenticated, TooMany: in words for the agent's person.
    """
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    domain, _ = split_domain_port(headers.get("host", ""))
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        raise Malformed("This server does not answer to that host name.")
    if scope["query_string"]:
        raise Malformed("This address takes no parameters; a token belongs into the header.")
    if (text := tokens.in_header(headers.get("authorization", ""))) is None:
        raise Unauthenticated(f"You are not logged in. {_HOW}")
    if (token := tokens.authenticate(text)) is None:
        raise Unauthenticated(f"This token is unknown, expired or revoked. {_HOW}")
    rate.requests.take(token.user_id)
    if scope["method"] != "POST":  # stateless: there is no stream to open and no session to end
        raise WrongMethod("This address answers to POST.")


@cache
def check_installed(sdk: str) -> None:
    """Check that the SDK is there, without loading it.

    Raises:
        NotInstalled: it is not.
    """
    if importlib.util.find_spec(sdk) is None:
        raise NotInstalled(
            "This server offers nothing for agents. Its administrator installs the extra mcp, then restarts Berth."
        )


def _make_manager() -> Any:
    """What serves one request; the first one loads the SDK, which takes a second and 35 MB, so not in the event loop."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    return StreamableHTTPSessionManager(_server(), json_response=True, stateless=True)


@cache
def _server() -> Any:
    from berth.agents.door import make_server

    logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)  # two lines a request
    return make_server(_rest_of)


@cache
def _django() -> WSGIHandler:
    return WSGIHandler()


def _rest_of(request: Any) -> Rest:
    """Reach REST with the token and from the address of the request that brought the call."""
    import httpx  # with its own command line, a tenth of what every web process would load

    client = httpx.Client(
        transport=httpx.WSGITransport(
            app=_django(),
            remote_addr=request.client.host if request.client else "",
        ),
        base_url=f"{request.url.scheme}://{request.headers['host']}/api/v1",
        headers={"Authorization": request.headers["authorization"]},
        trust_env=False,
    )

    def call(
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        key: str | None = None,
    ) -> Any:
        known = {name: value for name, value in (params or {}).items() if value is not None}
        headers = {} if key is None else {"Idempotency-Key": key}
        return _checked(client.request(method, path, params=known or None, json=body, headers=headers))

    return call


def _checked(answer: "httpx.Response") -> Any:
    """The JSON of an answer.

    Raises:
        ToolError: REST refused, with its sentence and the fields' sentences.
    """
    if answer.status_code < 400:
        return answer.json()
    problem = answer.json()
    fields = [f"{name}: {text}" for name, texts in problem["errors"].items() for text in texts]
    raise ToolError(" ".join(fields or [problem["detail"]]))
