"""People, their clients, and a home of its own for each test."""

from pathlib import Path

import orjson
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from orchestrator import tokens
from orchestrator.models import Device, Job, Pool
from orchestrator.spec import JobSpec
from orchestrator.store.layout import Home

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
def home(tmp_path: Path, settings) -> Home:
    settings.HOME = Home(tmp_path / "berth")
    settings.HOME.uploads.mkdir(parents=True)
    settings.FILE_UPLOAD_TEMP_DIR = str(settings.HOME.uploads)
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
    return settings.HOME


@pytest.fixture
def ada(db) -> User:
    return User.objects.create_user("ada", password="ada's password")  # noqa: S106  # a test's


@pytest.fixture
def bob(db) -> User:
    return User.objects.create_user("bob", password="bob's password")  # noqa: S106  # a test's


@pytest.fixture
def root(db) -> User:
    return User.objects.create_superuser("root", password="root's password")  # noqa: S106  # a test's


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
def make_pool(db):
    def make(name: str = "default", **fields: object) -> Pool:
        return Pool.objects.get_or_create(name=name, defaults=fields)[0]

    return make


@pytest.fixture
def make_device(make_pool):
    def make(index: int = 0, **fields: object) -> Device:
        defaults = {
            "id": f"sim-{index}",
            "index": index,
            "kind": "sim",
            "name": "Simulated GPU",
            "memory_bytes": 80 * 1024**3,
        }
        pool = fields.pop("pool", None) or make_pool()
        return Device.objects.create(pool=pool, **{**defaults, **fields})

    return make


@pytest.fixture
def make_job(make_pool):
    def make(owner: User, **fields: object) -> Job:
        now = timezone.now()
        spec = JobSpec(**fields.pop("spec", {}))
        return Job.objects.create(
            owner=owner,
            pool=make_pool(),
            **{
                "name": "digits",
                "spec_fields": spec.model_dump(mode="json", exclude={"source"}),
                "bundle": "0" * 64,
                "submitted_at": now,
                "queued_at": now,
                **fields,
            },
        )

    return make


@pytest.fixture
def submit(make_device):
    """Submit a one-line script on a pool with two devices; fields of the job as keywords."""
    for index in range(2):
        make_device(index)

    def send(client: ApiClient, *, key: str | None = None, **fields: object):
        body = {"name": "digits", "source": {"text": SCRIPT}, **fields}
        return client.send("POST", "/jobs", body, **({"Idempotency-Key": key} if key is not None else {}))

    return send
