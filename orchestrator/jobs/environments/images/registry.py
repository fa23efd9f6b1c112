"""Reads images of a registry, by the Open Container Initiative's distribution protocol.

See https://github.com/opencontainers/distribution-spec and, for tokens,
https://distribution.github.io/distribution/spec/auth/token/.  Only the program ``pulling`` imports this, under the
guard of its sockets.
"""

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO, Self
from urllib.parse import urlencode, urlsplit

from orchestrator.jobs.environments.images.layers import CannotGet
from orchestrator.spec.images import DOCKER_HUB, ImageName

PATIENCE_S = 60.0  # of one answer
LARGEST_ANSWER_BYTES = 4 * 1024**2  # of a manifest or a token; 4 MiB is what registries must take
_HUB_HOST = "registry-1.docker.io"
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})  # without encryption, as docker and podman have it
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without the token, which is not meant for another host, and never out of encryption."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        target = urlsplit(newurl)
        if req.type == "https" and target.scheme != "https":
            raise CannotGet("network", f"{req.host} leads on to {target.hostname}, which has no encryption.")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and target.netloc != req.host:
            request.remove_header("Authorization")
        return request


class Answer:
    """An open answer of a registry, as a file to read once."""

    def __init__(self, response: HTTPResponse, registry: str) -> None:
        self._response = response
        self._registry = registry

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()

    def read(self, size: int) -> bytes:
        """At most that many bytes, fewer only at the end.

        Raises:
            CannotGet: the line broke.
        """
        try:
            data = self._response.read(size)
        except (OSError, HTTPException) as error:
            raise CannotGet("network", f"{self._registry}: {_reason(error)}.") from error
        if len(data) < size and self._response.length:
            raise CannotGet("network", f"{self._registry}: the answer broke off.")
        return data


class Registry:
    """One repository of a registry."""

    def __init__(self, name: ImageName, login: str = "") -> None:
        """``login``: "user:password" for this registry; empty: as anybody."""
        self.name = name
        self._login = login
        self._authorization = ""
        host = _HUB_HOST if name.registry == DOCKER_HUB else name.registry
        is_local = (urlsplit(f"//{host}").hostname or "") in {each.strip("[]") for each in _LOCAL}
        self._base = f"{'http' if is_local else 'https'}://{host}/v2/{name.repository}"
        self._opener = urllib.request.build_opener(_Redirects())

    def manifest(self, reference: str) -> bytes:
        """The manifest or index of a tag or digest.

        Raises:
            CannotGet: it does not exist, or it cannot be had.
        """
        with self.open(f"manifests/{reference}", {"Accept": ", ".join(MANIFESTS)}) as answer:
            data = answer.read(LARGEST_ANSWER_BYTES + 1)
        if len(data) > LARGEST_ANSWER_BYTES:
            raise CannotGet("format", "Its manifest is too large.")
        return data

    def blob(self, digest: str) -> Answer:
        """The open answer with a layer or configuration.

        Raises:
            CannotGet: it cannot be had.
        """
        return self.open(f"blobs/{digest}", {})

    def open(self, path: str, headers: Mapping[str, str]) -> Answer:
        """An answer of the registry, with a token where it asks for one."""
        try:
            return self._ask(path, headers)
        except urllib.error.HTTPError as error:
            error.close()
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge:
                raise self._refusal(error) from None
        try:
            self._authorization = self._answer_to(challenge)
            return self._ask(path, headers)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._refusal(error) from None

    def _ask(self, path: str, headers: Mapping[str, str]) -> Answer:
        own = {"Authorization": self._authorization} if self._authorization else {}
        return self._fetch(f"{self._base}/{path}", {**headers, **own})

    def _fetch(self, address: str, headers: Mapping[str, str]) -> Answer:
        request = urllib.request.Request(address, headers={"User-Agent": "berth", **headers})  # noqa: S310 -- http, checked
        try:
            return Answer(self._opener.open(request, timeout=PATIENCE_S), self.name.registry)
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException) as error:
            raise CannotGet("network", f"{self.name.registry}: {_reason(error)}.") from error

    def _answer_to(self, challenge: str) -> str:
        """The authorization that a registry asks for."""
        basic = base64.b64encode(self._login.encode()).decode()
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            return f"Basic {basic}" if self._login else ""
        asked = dict(_CHALLENGE.findall(rest))
        realm = asked.get("realm", "")
        at_home = urlsplit(realm).hostname == urlsplit(self._base).hostname
        if urlsplit(realm).scheme != "https" and not (at_home and self._base.startswith("http://")):
            raise CannotGet(
                "network", f"{self.name.registry} wants a login over an address without encryption."
            )
        scope = asked.get("scope", f"repository:{self.name.repository}:pull")
        query = urlencode({"service": asked.get("service", ""), "scope": scope})
        headers = {"Authorization": f"Basic {basic}"} if self._login else {}
        with self._fetch(f"{realm}?{query}", headers) as answer:
            found = json.loads(answer.read(LARGEST_ANSWER_BYTES))
        return f"Bearer {found.get('token') or found.get('access_token') or ''}"

    def _refusal(self, error: urllib.error.HTTPError) -> CannotGet:
        host = self.name.registry
        if error.code in (401, 403):
            return CannotGet(
                "denied", f"{host} gives it only to those who may read it, or has no such image."
            )
        if error.code == 404:
            return CannotGet("missing", f"{host} has no {self.name.repository} {self.name.reference}.")
        if error.code == 429:
            return CannotGet("network", f"{host} answers no more for now: too many requests.")
        cause = "network" if error.code >= 500 else "other"
        return CannotGet(cause, f"{host} answered {error.code} {error.reason}.")


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason).rstrip(".") or type(error).__name__
