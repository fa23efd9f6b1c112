"""A real Chromium on a server of our own, signed in, with jobs to look at."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from benchmarks.figures import ROOT
from benchmarks.server import Client, Server

SCRIPT = ROOT / "benchmarks" / "scripts" / "curves.py"
SIGN_IN = """
from importlib import import_module
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
browser = Client()
browser.force_login(get_user_model().objects.get(username="admin"))
print(browser.cookies[settings.SESSION_COOKIE_NAME].value)
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium.

    Raises:
        FileNotFoundError: there is none.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise FileNotFoundError("Chromium is not installed; `apt-get install chromium`.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Opens pages of a server as its admin, each time in a browser that has nothing cached."""

    def __init__(self, browser: Browser, server: Server) -> None:
        self._browser = browser
        self.url = f"http://127.0.0.1:{server.port}"
        self._session = server.manage("shell", "--no-imports", "-c", SIGN_IN).strip().splitlines()[-1]

    @contextmanager
    def context(self, *, width: int = 1440, **options: Any) -> Iterator[BrowserContext]:
        context = self._browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.add_cookies([{"name": "berth_session", "value": self._session, "url": self.url}])
        try:
            yield context
        finally:
            context.close()

    @contextmanager
    def enter(self, session: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Open a session as its owner's browser does; gives its address and the cookies that open it."""
        cookies = httpx.Cookies()
        cookies.set("berth_session", self._session, domain="127.0.0.1")
        with httpx.Client(cookies=cookies, follow_redirects=True, timeout=60) as browser:
            answer = browser.get(f"{self.url}/sessions/{session}/open")
            answer.raise_for_status()
            theirs = {one.name: one.value or "" for one in browser.cookies.jar if one.path.startswith("/s/")}
            yield str(answer.url).partition("?")[0], theirs


def submit(client: Client, name: str, *args: str, **fields: Any) -> str:
    body = {
        "name": name,
        "source": {"text": SCRIPT.read_text()},
        "entrypoint": "train.py",
        "args": list(args),
        "total_steps": 20_000,
        **fields,
    }
    return str(client.post("/jobs", body)["id"])


def wait_for_numbers(client: Client, job_id: str, within_s: float = 60) -> None:
    """Until a job has reported all that it reports at once."""
    deadline = time.monotonic() + within_s
    while (client.get(f"/jobs/{job_id}")["progress"]["step"] or 0) < 4_000:
        if time.monotonic() > deadline:
            raise RuntimeError(f"Job {job_id} reported nothing in {within_s:.0f} s.")
        time.sleep(0.2)
