"""Readers of the pages, readings on disk, and a real browser on a real server."""

import io
import re
import shutil
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import uvicorn
from channels.routing import ProtocolTypeRouter, URLRouter
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.core.handlers.asgi import ASGIHandler
from django.test import Client
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from dashboard.live.polling import WithPolling
from dashboard.urls import websocket_urlpatterns
from orchestrator.jobs.submission import intake
from orchestrator.live.readings import NowReadings, write_now
from orchestrator.models import Dataset, DatasetRoot, Job
from orchestrator.people import secrets
from orchestrator.sharing import projects
from orchestrator.spec.job_spec import GIB
from tests.conftest import lacking
from tests.spec.every_field import every_field
from tests.waiting import PATIENCE_S

expect.set_options(timeout=PATIENCE_S * 1000)  # a page that is slow because the machine is busy is not wrong


@pytest.fixture
def reader(home) -> Callable[[User], Client]:
    """A browser in which somebody is signed in."""

    def make(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def job_with_every_field(home, ada, make_job, make_pool, make_device, tmp_path) -> Job:
    """A job whose fields all differ from their defaults, and everything that they refer to.

    All but one: a job has packages of its own, or an interpreter that has them.
    """
    pool = make_pool("a100")
    for index in (8, 9):
        make_device(index, pool=pool)
    (tmp_path / "plays").mkdir()
    root = DatasetRoot.objects.create(name="data", path=str(tmp_path))
    Dataset.objects.create(name="shakespeare", version="1", root=root, path="plays", owner=ada)
    secrets.keep(ada, "WANDB_API_KEY", "x")
    projects.create(ada, "paper-x")
    before = [str(make_job().pk), {"job": str(make_job().pk), "when": "any"}]
    tags = ["plain", 'with, "comma"', '"quoted"']
    spec = intake.parse_spec(
        every_field(
            depends_on=before,
            array="7",
            tags=tags,
            python=None,
            environment={"files": {"requirements.txt": "einops"}},
        )
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("fit.py", "print('step 1')")
        archive.writestr("src/notes.txt", "")
    return intake.accept(ada, spec, bundle=ContentFile(packed.getvalue(), name="code.zip")).job


@pytest.fixture
def write_readings(home) -> Callable[..., None]:
    """Write what the agent would: one entry for each device id, with more fields by id."""

    def write(
        *ids: str,
        seq: int = 1,
        age_s: float = 0,
        stream: str = "s",
        simulated: bool = False,
        **by_id: dict[str, Any],
    ) -> None:
        entries: list[Any] = [
            {
                "id": device,
                "index": number,
                "kind": "sim",
                "label": f"simulated GPU {number}",
                "name": "Simulated GPU",
                "used_bytes": GIB,
                "total_bytes": 80 * GIB,
                "stale": False,
                "processes": [],
                "foreign_bytes": 0,
                "holders": [],
                **by_id.get(device.replace("-", "_"), {}),
            }
            for number, device in enumerate(ids)
        ]
        write_now(
            NowReadings(seq, time.time() - age_s, stream, None, simulated, {"cpu_percent": 31.0}, entries)
        )

    return write


class Server:
    """The web process in a thread, which can be stopped and started again on its port."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.lets_sockets_in = True

    def start(self) -> None:
        routes = {"http": WithPolling(ASGIHandler()), "websocket": self._open_socket}
        config = uvicorn.Config(
            ProtocolTypeRouter(routes), port=self.port, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.02)

    async def _open_socket(self, scope: Any, receive: Any, send: Any) -> None:
        """A socket, unless this server plays one behind a proxy that knows none."""
        if self.lets_sockets_in:
            await URLRouter(websocket_urlpatterns)(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close"})

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)


@pytest.fixture
def server(home, settings) -> Iterator[Server]:
    settings.WHITENOISE_USE_FINDERS = True
    settings.WHITENOISE_AUTOREFRESH = True
    server = Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        lacking("Chromium is not installed")
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright runs a loop in this thread; the tests' own queries there are meant.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_S * 1000
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, server) -> Iterator[Callable[..., Page]]:
    """Open an address as somebody; at the end no error was logged and no other host asked."""
    complaints: list[str] = []
    contexts = []

    def open_as(user: Any, address: str, *, width: int = 1440, **options: Any) -> Page:
        client = Client()
        client.force_login(user)
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_S * 1000)
        cookie = client.cookies["berth_session"].value
        context.add_cookies([{"name": "berth_session", "value": cookie, "url": server.url}])
        context.on("request", lambda seen: _check_host(seen.url, server, complaints))
        page: Page = context.new_page()
        _watch_requests(page)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        page.on("console", lambda said: _check_console(said, complaints))
        page.goto(server.url + address)
        return page

    yield open_as
    for context in contexts:
        context.close()
    assert complaints == []


_ON_THEIR_WAY: WeakKeyDictionary[Page, set[Request]] = WeakKeyDictionary()


def _watch_requests(page: Page) -> None:
    pending = _ON_THEIR_WAY[page] = set()
    page.on("request", lambda request: pending.add(request))
    page.on("requestfinished", lambda request: pending.discard(request))
    page.on("requestfailed", lambda request: pending.discard(request))


def settle(page: Page) -> None:
    """Wait until everything that a page asked for has come.

    The browser's own "networkidle" never comes where the machine was too slow for a socket: the page then polls, and
    one request is always open.
    """
    page.wait_for_load_state("load")
    deadline = time.monotonic() + PATIENCE_S
    quiet = 0
    while quiet < 5:
        asked = [each.url for each in _ON_THEIR_WAY[page] if "/api/v1/poll" not in each.url]
        assert time.monotonic() < deadline, f"{page.url} still waits for {asked}"
        quiet = 0 if asked else quiet + 1
        page.wait_for_timeout(100)


def wait_for_request(page: Page, held: Sequence[object]) -> None:
    """Wait until a route has caught a request; a plain loop would go on for ever where none comes."""
    deadline = time.monotonic() + PATIENCE_S
    while not held:
        assert time.monotonic() < deadline, f"{page.url} asked for nothing that is held"
        page.wait_for_timeout(20)


def _check_host(url: str, server: Server, complaints: list[str]) -> None:
    if not url.startswith((server.url, "data:", "blob:")):
        complaints.append(f"asked {url}")


def _check_console(said: Any, complaints: list[str]) -> None:
    # A lost connection is logged by the browser itself.
    if said.type == "error" and not re.search(r"WebSocket|ERR_CONNECTION|ERR_EMPTY", said.text):
        complaints.append(said.text)
