"""The page of the Queue, as a person reads it in a browser."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.system.server import Server


class QueuePage:
    """The texts of the Queue, each time that somebody looked."""

    def __init__(self, browser: httpx.Client) -> None:
        self._browser = browser
        self.texts: list[str] = []

    def look(self) -> str:
        answer = self._browser.get("/queue")
        assert answer.status_code == 200, answer.text
        self.texts.append(re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.text))))
        return self.texts[-1]

    def said(self, sentence: str) -> bool:
        """Whether a sentence was there at any time that somebody looked."""
        return any(sentence in text for text in self.texts)


@contextmanager
def signed_in(server: Server) -> Iterator[httpx.Client]:
    """A browser of the first admin's."""
    url = f"http://127.0.0.1:{server.port}"
    with httpx.Client(base_url=url, follow_redirects=True, timeout=20) as browser:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get("/login").text)
        assert token is not None
        form = {"csrfmiddlewaretoken": token[1], "username": "root", "password": "root's password"}
        assert browser.post("/login", data=form, headers={"Referer": f"{url}/login"}).status_code == 200
        yield browser


@contextmanager
def open_queue(server: Server) -> Iterator[QueuePage]:
    with signed_in(server) as browser:
        yield QueuePage(browser)
