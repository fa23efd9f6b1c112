"""The websocket's frames by long polling, for networks that block websockets.

A separate ASGI application: a Django view would occupy one of the few threads while it waits.
"""

import asyncio
from urllib.parse import parse_qsl

from channels.db import database_sync_to_async
from channels.generic.http import AsyncHttpConsumer
from django.conf import settings
from django.http.request import split_domain_port, validate_host

from dashboard.live import feed, frames, passes
from dashboard.live.consumers import LARGEST_SEQ, MOST_TOPICS, read_headers
from dashboard.live.topics import Source
from orchestrator.api.http.connections import Application, Receive, Scope, Send
from orchestrator.api.http.errors import Unauthenticated, WrongMethod, problem
from orchestrator.exceptions import Malformed, OrchestratorError, Sentence

LONGEST_WAIT_S = 20.0
LINGER_S = 5.0  # keep watching the topics after an answer, since the next poll follows at once
LONGEST_QUERY = 8192


class BadQuery(Exception):
    """The query does not name valid topics; the message says why."""


class PollConsumer(AsyncHttpConsumer):
    """Answers with the new frames of the topics as an array, empty after 20 s without news."""

    pass_: passes.Pass
    language: str

    async def handle(self, body: bytes) -> None:
        self._event = asyncio.Event()
        self._fresh: dict[str, Source] = {}
        self._expelled = False
        headers, cookies = read_headers(self.scope)
        domain, _ = split_domain_port(headers.get("host", ""))
        if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
            await self._refuse(Malformed("This server does not answer to that host name."))
            return
        if self.scope["method"] not in {"GET", "HEAD"}:
            await self._refuse(WrongMethod("This address answers to GET."), (b"Allow", b"GET"))
            return
        holder = await database_sync_to_async(passes.identify)(headers, cookies)
        if holder is None:
            await self._refuse(Unauthenticated("You are not signed in."), (b"WWW-Authenticate", b"Token"))
            return
        self.pass_ = holder
        self.language = passes.language_of(headers, cookies)
        try:
            wanted, stream = read_query(self.scope["query_string"])
        except BadQuery as error:
            await self._refuse(Malformed(str(error)))
            return
        texts = await self._wait(wanted, same_stream=stream == feed.STREAM)
        if self._expelled:
            gone = Unauthenticated("You are no longer signed in.")
            await self._refuse(gone, (b"WWW-Authenticate", b"Token"))
            return
        await self._answer(200, f"[{','.join(texts)}]".encode(), "application/json")

    def mark(self, source: Source) -> None:
        self._fresh[source.topic] = source
        self._event.set()

    def expel(self) -> None:
        self._expelled = True
        self._event.set()

    async def _wait(self, wanted: dict[str, int | None], *, same_stream: bool) -> list[str]:
        """The new frames. Counters from before a server restart are ignored; offsets on disk stay valid."""
        texts = [frames.hello(feed.STREAM)]
        following: dict[str, int | None] = {}
        current = feed.current()
        current.join(self)
        try:
            for topic, after in wanted.items():
                target = passes.parse_topic(topic) if len(topic) <= passes.LONGEST_TOPIC else None
                if target is None or not await database_sync_to_async(passes.may_read)(self.pass_, target):
                    texts.append(frames.refused(topic[: passes.LONGEST_TOPIC], 404))
                    continue
                lasting = same_stream or target.kind in {"metrics", "log"}
                following[topic] = after if lasting else None
                current.subscribe(self, target)
            if len(texts) == 1:
                texts += await self._first_news(following)
        finally:
            current.loop.call_later(LINGER_S, self._leave, current)
        return texts

    def _leave(self, current: feed.Feed) -> None:
        self._leaving = asyncio.ensure_future(current.leave(self))

    async def _first_news(self, following: dict[str, int | None]) -> list[str]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LONGEST_WAIT_S
        texts: list[str] = []
        while not texts and not self._expelled and (left_s := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._event.wait()
            except TimeoutError:
                break
            self._event.clear()
            fresh, self._fresh = self._fresh, {}
            for source in fresh.values():
                try:
                    batch = await source.batch(following.get(source.topic))
                except (OSError, OrchestratorError):
                    continue  # the file is missing for a moment; the next poll retries
                texts += batch.frames
        return texts

    async def _refuse(self, error: OrchestratorError, *more: tuple[bytes, bytes]) -> None:
        await self._answer(error.status, problem(error).content, "application/problem+json", *more)

    async def _answer(self, status: int, body: bytes, kind: str, *more: tuple[bytes, bytes]) -> None:
        headers = [
            *more,
            (b"Content-Type", kind.encode()),
            (b"Content-Length", str(len(body)).encode()),
            (b"Cache-Control", b"private, no-store"),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        await self.send_response(status, body, headers=headers)


def read_query(query: bytes) -> tuple[dict[str, int | None], str]:
    """The topics, each with the newest seq the client has, and the stream of these counters.

    ``after`` belongs to the ``topic`` before it.

    Raises:
        BadQuery: no topic, too many, or an invalid seq.
    """
    if len(query) > LONGEST_QUERY:
        raise BadQuery(
            Sentence(
                "The query is longer than {longest_query} bytes; poll fewer topics at once.",
                longest_query=LONGEST_QUERY,
            )
        )
    topics: dict[str, int | None] = {}
    stream, last = "", ""
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name == "topic":
            topics[value] = None
            last = value
        elif name == "after" and last:
            topics[last] = _seq(value)
        elif name == "stream":
            stream = value
        else:
            raise BadQuery("Give topic=T&after=N, once for each topic, and stream=S of the last hello.")
    if not topics:
        raise BadQuery("Give at least one topic.")
    if len(topics) > MOST_TOPICS:
        raise BadQuery(Sentence("Give at most {most_topics} topics.", most_topics=MOST_TOPICS))
    return topics, stream


def _seq(text: str) -> int | None:
    if text in {"", "null"}:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < LARGEST_SEQ):
        raise BadQuery("after must be a seq of its topic (a whole number), or empty for the whole state.")
    return int(text)


class WithPolling:
    """An ASGI application in front of another, which answers the one address that waits for long."""

    ADDRESS = "/api/v1/poll"

    def __init__(self, application: Application) -> None:
        self._application = application
        self._polling: Application = PollConsumer.as_asgi()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chosen = self._polling if scope["path"] == self.ADDRESS else self._application
        await chosen(scope, receive, send)
