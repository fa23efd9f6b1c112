"""Sign-in by OpenID Connect, against an issuer of the test's own on this machine."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from tests.system.server import Server

pytestmark = pytest.mark.slow
KEY = "a key of thirty-two letters or more"
# Where the library that talks to the issuer has pages for passwords and accounts of its own.
PASSWORD_PAGES = [
    f"/{prefix}/{page}/"
    for prefix in ("sso", "accounts")
    for page in (
        "password/reset",
        "password/change",
        "password/set",
        "reauthenticate",
        "email",
        "confirm-email",
    )
]


class Issuer(BaseHTTPRequestHandler):
    """As much of OpenID Connect as a sign-in needs; ``person`` is who signs in there."""

    person = {"sub": "17", "preferred_username": "grace", "email": "grace@lab.example"}
    nonce: str | None = None

    def do_GET(self) -> None:
        base = f"http://{self.headers['Host']}"
        parts = urlsplit(self.path)
        if parts.path == "/.well-known/openid-configuration":
            names = ("authorization", "token", "userinfo")
            self._send(
                {"issuer": base, "jwks_uri": f"{base}/keys"}
                | {f"{name}_endpoint": f"{base}/{name}" for name in names}
            )
        elif parts.path == "/authorization":
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            type(self).nonce = query.get("nonce")
            self.send_response(302)
            self.send_header("Location", f"{query['redirect_uri']}?code=once&state={query['state']}")
            self.end_headers()
        else:
            self._send(self.person)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        claims = {
            **self.person,
            "iss": f"http://{self.headers['Host']}",
            "aud": "berth",
            "iat": int(time.time()),
            "exp": int(time.time()) + 60,
            "nonce": self.nonce,
        }
        token = jwt.encode(claims, KEY, algorithm="HS256")
        self._send({"access_token": "a", "token_type": "Bearer", "expires_in": 60, "id_token": token})

    def _send(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def issuer() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Issuer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_person_of_the_issuer_signs_in_and_waits_for_an_approval(
    make_server: Callable[..., Server], issuer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("client secret\n")
    server = make_server(
        extra={
            "BERTH_OIDC_ISSUER": issuer,
            "BERTH_OIDC_CLIENT_ID": "berth",
            "BERTH_OIDC_SECRET_FILE": str(secret),
            "BERTH_OIDC_NAME": "the lab's account",
            "BERTH_OIDC_DOMAINS": "lab.example",
        }
    ).start()

    url = f"http://127.0.0.1:{server.port}"
    with httpx.Client(base_url=url, follow_redirects=True) as browser:
        page = browser.get("/login")
        assert "Sign in with the lab&#x27;s account" in page.text
        assert "form-action 'self' https:" in page.headers["Content-Security-Policy"]
        answer = sign_in(browser)
        assert answer.status_code == 200, answer.text
        assert str(answer.url).rstrip("/") == url
        me = browser.get("/api/v1/me").json()
        assert (me["username"], me["role"]) == ("grace", "viewer")
        assert "Your account is new" in answer.text
        assert browser.get("/admin/").status_code == 403
        assert browser.get("/sso/error/").status_code in {200, 401}
        assert [path for path in PASSWORD_PAGES if browser.get(path).status_code != 404] == []
        refused = post(browser, "/account/password", "/account", current="", new="a long word of passing")
        assert refused.status_code == 409
    monkeypatch.setattr(
        Issuer, "person", {"sub": "18", "preferred_username": "eve", "email": "eve@else.example"}
    )
    with httpx.Client(base_url=url, follow_redirects=True) as browser:
        answer = sign_in(browser)
        assert answer.status_code == 403
        assert "of no domain that may use this server" in answer.text
        assert browser.get("/api/v1/me").status_code == 401


def sign_in(browser: httpx.Client) -> httpx.Response:
    """The answer at the end of the way over the issuer."""
    return post(browser, "/sso/oidc/login/", "/login")


def post(browser: httpx.Client, path: str, page: str, **fields: str) -> httpx.Response:
    """Send a form of a page."""
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get(page).text)
    assert token is not None
    referer = str(browser.base_url.join(page))
    return browser.post(path, data={"csrfmiddlewaretoken": token[1], **fields}, headers={"Referer": referer})
