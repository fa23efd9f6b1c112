"""Requests to a server: retries, pages of lists, downloads."""

import os
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import httpx

from berth.client.downloads import whole_file
from berth.client.errors import NotSignedIn, Unreachable, errors_in_words, raise_for_status
from berth.client.login import DEFAULT_URL, read_login, tidy_url


class Connection:
    """A server, seen as the owner of a token: any route, also one without a method of its own."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_s: float = 30) -> None:
        login = read_login()
        self.url = tidy_url(url or os.environ.get("BERTH_URL") or login.get("url") or DEFAULT_URL)
        stored = login.get("token") if login.get("url") == self.url else None  # for no other server
        self.token = (token or os.environ.get("BERTH_TOKEN") or stored or "").strip()
        if not self.token.isascii() or not self.token.isprintable():
            raise NotSignedIn(
                "The token has characters that no token has; copy it again from your account page."
            )
        self.timeout_s = timeout_s
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Token {self.token}"} if self.token else {},
            timeout=httpx.Timeout(timeout_s, connect=min(5, timeout_s)),
            # Reading all certificates takes 30 ms; without TLS there is nothing to check.
            verify=self.url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, *, params: Mapping[str, Any] | None = None, patience_s: float = 0) -> Any:
        return self.send("GET", path, params=params, patience_s=patience_s).json()

    def pages(
        self, path: str, params: Mapping[str, Any] | None = None, *, limit: int | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Iterate over the entries of a list, page by page."""
        query = {name: value for name, value in (params or {}).items() if value is not None}
        if limit is not None:
            query["limit"] = max(1, min(limit, 500))
        count = 0
        while True:
            page = self.get(path, params=query)
            for entry in page["results"]:
                if limit is not None and count >= limit:
                    return
                count += 1
                yield entry
            if not page["next"]:
                return
            # Use only the query: the token must not go to an address that an answer contains.
            query = dict(parse_qsl(urlsplit(page["next"]).query))

    def send(
        self, method: str, path: str, *, patience_s: float = 0, again: int = 0, **options: Any
    ) -> httpx.Response:
        """Send a request; return answers below 400, raise the others.

        Args:
            patience_s: how long to try again while the server is away; only for what may be sent twice.
            again: how often to try at once when a connection broke under way; likewise.
            options: as ``httpx.Client.request`` takes them.
        """
        deadline, pause_s = time.monotonic() + patience_s, 0.2
        while True:
            try:
                return raise_for_status(self._request(method, path, options), self.url)
            except Unreachable as error:
                broke = error.code == "broken" and again > 0
                if not broke and time.monotonic() + pause_s > deadline:
                    raise
            again -= 1
            time.sleep(pause_s)
            pause_s = min(5.0, pause_s * 2)

    def download(self, path: str, to: Path) -> Path:
        """Stream an answer into a file that appears when it is complete."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with (
            errors_in_words(self.url, self.timeout_s),
            self._http.stream("GET", path) as answer,
            whole_file(to) as file,
        ):
            if answer.status_code >= 400:
                answer.read()
            raise_for_status(answer, self.url)
            for chunk in answer.iter_bytes():
                file.write(chunk)
        return to

    def _request(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        with errors_in_words(self.url, self.timeout_s):
            return self._http.request(method, path, **options)
