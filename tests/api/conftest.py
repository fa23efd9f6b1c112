"""Clients of the API for the people of the shared conftest."""

import orjson
import pytest
from django.contrib.auth.models import User
from django.test import Client

from orchestrator.people import tokens

SCRIPT = "print('step 1 loss 0.5')\n"


class ApiClient(Client):
    """Django's client that talks JSON and checks CSRF as a browser would meet it."""

    def __init__(self, token: str | None = None) -> None:
        headers = {"Authorization": f"Token {token}"} if token else {}
        super().__init__(enforce_csrf_checks=True, headers=headers, raise_request_exception=False)

    def send(self, method: str, path: str, body: object = None, **headers: str):
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        return self.generic(method, f"/api/v1{path}", data, content_type="application/json", headers=headers)


@pytest.fixture
def client_of(home):
    """A client with a token: ``client_of(ada)``, ``client_of(ada, "read")``."""

    def make(user: User, scope: str = "") -> ApiClient:
        scope = scope or ("admin" if user.is_staff else "write")
        return ApiClient(tokens.issue(user, name="test", scope=scope)[1])

    return make


@pytest.fixture
def anonymous(home) -> ApiClient:
    return ApiClient()


@pytest.fixture
def submit(make_device):
    """Submit a one-line script on a pool with two devices; fields of the job as keywords."""
    for index in range(2):
        make_device(index)

    def send(client: ApiClient, *, key: str | None = None, **fields: object):
        body = {"name": "digits", "source": {"text": SCRIPT}, **fields}
        return client.send("POST", "/jobs", body, **({"Idempotency-Key": key} if key is not None else {}))

    return send
