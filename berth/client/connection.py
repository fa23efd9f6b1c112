"""The connection to a server: its address and token, requests with retries, lists page by page, downloads.

Answers become a ``Record``, or a class made of it.
"""

import contextlib
import io
import json
import os
import re
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import parse_qsl, urlsplit

import httpx

from berth.client.errors import (
    BerthError,
    NotFound,
    NotSignedIn,
    Unreachable,
    errors_in_words,
    not_berth,
    raise_for_status,
    read_json,
)

DEFAULT_URL = "http://localhost:8265"


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
        return read_json(self.send("GET", path, params=params, patience_s=patience_s), self.url)

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
            if not isinstance(page, dict) or not {"results", "next"} <= page.keys():
                raise not_berth(self.url)
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
        _check_names(path)
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
        _check_names(path)
        with errors_in_words(self.url, self.timeout_s):
            return self._http.request(method, path, **options)


def _check_names(path: str) -> None:
    """Refuse a name that would lead to another address: httpx takes ``/projects/a/members/..`` for ``/projects/a``.

    Raises:
        NotFound: a part of the path is empty, or dots.
    """
    for part in path.partition("?")[0].split("/")[1:]:
        if part in {"", ".", ".."}:
            raise NotFound(f"Nothing has the name {part!r}; give a name or an id.")


class MissingField(AttributeError):
    """An answer does not have a field; the server is of another version, or no Berth."""


class Record:
    """An answer: its fields as attributes, those in ``_at`` as datetimes; ``json`` is the raw answer."""

    _parts: ClassVar[Mapping[str, type["Record"]]] = {}

    def __init__(self, json: Mapping[str, Any]) -> None:
        self.json = json

    if not TYPE_CHECKING:  # for type checkers only the declared names exist

        def __getattr__(self, name: str) -> Any:
            if name == "json" or name not in self.json:
                raise MissingField(f"{type(self).__name__} has no {name!r}", name=name, obj=self)
            value = self.json[name]
            if kind := self._parts.get(name):
                if isinstance(value, list):
                    return [kind(each) for each in value]
                return None if value is None else kind(value)
            if name.endswith("_at") and isinstance(value, str):
                return datetime.fromisoformat(value)
            return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.json!r})"


def login_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "berth" / "login.json"


def read_login() -> dict[str, str]:
    """Read the url and token that `berth login` stored; empty before the first login.

    Raises:
        BerthError: the file is there and cannot be read.
    """
    path = login_path()
    try:
        login = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BerthError(f"{path} cannot be read ({error}); remove it and run: berth login") from error
    if not isinstance(login, dict):
        raise BerthError(f"{path} is not a login of Berth; remove it and run: berth login")
    return {name: str(value) for name, value in login.items()}


def save_login(url: str, token: str) -> Path:
    """Store a login in a file that only its owner can read."""
    path = login_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with whole_file(path) as file:  # made with mode 0600
        file.write(json.dumps({"url": tidy_url(url), "token": token}).encode())
    return path


def tidy_url(url: str) -> str:
    """Normalise a server's address: ``scheme://host:port`` with its path, without a final slash.

    Raises:
        BerthError: the text is no address.
    """
    text = url.strip()
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        named = re.fullmatch(r"[\w.:%-]+", parts.hostname or "")  # colons as in IPv6
        valid = parts.scheme in {"http", "https"} and named is not None and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise BerthError(f"{url!r} is not the address of a server; give one such as http://gpu-box:8265.")
    return text.rstrip("/").removesuffix("/api/v1")


@contextlib.contextmanager
def whole_file(to: Path) -> Iterator[io.BufferedWriter]:
    """Open a file that gets the name ``to`` when it is complete, and is removed on an error."""
    handle, part = tempfile.mkstemp(prefix=f".{to.name[:80]}.", suffix=".part", dir=to.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(part).replace(to)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
