"""The websocket of a page: subscriptions in, frames out; it reads no rules and keeps no backlog."""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any

import orjson
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from dashboard.live import feed, frames, passes
from dashboard.live.topics import Source
from orchestrator.api.resources.logs import read_beside
from orchestrator.exceptions import OrchestratorError
from orchestrator.spec.plain_text import why_unwritable
from orchestrator.store.logs.lines import show_lines

logger = logging.getLogger(__name__)

MOST_TOPICS = 64
LONGEST_MESSAGE = 4096  # characters; a subscription has about 150
MESSAGES_A_SECOND = 20
BURST = 200
LINES_COST = 0.1  # of a message: dragging a log's scroll bar asks at each frame of the screen
MOST_LINES_ASKED = 500
LOG_BYTES_A_SECOND = 256 << 10
STALLED_S = 30.0
LARGEST_SEQ = 1 << 62

NOT_TEXT, NOT_JSON, AGAINST_RULES, TOO_LONG, FAILED = 1003, 1007, 1008, 1009, 1011
SIGNED_OUT, STALLED, TOO_MANY = 4001, 4008, 4029


class BadMessage(Exception):
    """What came in breaks the protocol; ``code`` is what the socket is closed with."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Left(Exception):
    """The client is gone."""


@dataclass(slots=True)
class _Subscription:
    target: passes.Target
    source: Source
    seq: int | None  # what the client holds
    sent_at: float = float("-inf")


class _Allowance:
    """A bucket that fills at a steady rate."""

    def __init__(self, rate: float, most: float) -> None:
        self._rate, self._most = rate, most
        self._left, self._at = most, time.monotonic()

    def take(self, count: float) -> float:
        """Take ``count``, at once where there is anything left; else returns the seconds until there is."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left <= 0:
            return -self._left / self._rate + 0.01
        self._left -= count
        return 0.0


class NoSuchSocket(AsyncWebsocketConsumer):
    """Whatever is asked for at another address: refused, without a trace in the log."""

    async def connect(self) -> None:
        await self.close()


class LiveConsumer(AsyncWebsocketConsumer):
    """One page's connection; of each topic it is at most one batch behind, whatever the client takes."""

    pass_: passes.Pass
    language: str

    async def connect(self) -> None:
        self._joined = self._has_left = False
        self._subscriptions: dict[str, _Subscription] = {}
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._messages = _Allowance(MESSAGES_A_SECOND, BURST)
        self._log_bytes = _Allowance(LOG_BYTES_A_SECOND, LOG_BYTES_A_SECOND)
        self._sender: asyncio.Task[None] | None = None
        headers, cookies = read_headers(self.scope)
        if not passes.is_same_origin(headers, secure=self.scope.get("scheme") == "wss"):
            await self.close()  # before accept: the handshake is refused
            return
        holder = await database_sync_to_async(passes.identify)(headers, cookies)
        if holder is None:
            if "authorization" in headers:
                await self.close()
                return
            await self.accept()  # a browser sees the code only of a socket that was open
            await self.close(SIGNED_OUT)
            return
        self.pass_ = holder
        self.language = passes.language_of(headers, cookies)
        self._feed = feed.current()
        if not await self._feed.sockets.enter(holder.user_id):
            await self.accept()  # as above
            await self.close(TOO_MANY, "You have too many live pages open; close some.")
            return
        self._feed.join(self)
        self._joined = True
        try:
            await self.accept()
            await self.send(text_data=frames.hello(feed.STREAM))
        except BaseException:  # then nobody calls disconnect
            await self._leave()
            raise
        self._sender = asyncio.create_task(self._send_batches(), name="live sender")

    async def disconnect(self, code: int) -> None:
        if self._sender is not None:
            self._sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sender
        await self._leave()

    async def _leave(self) -> None:
        if self._joined:
            self._joined = False
            await self._feed.leave(self)
            await self._feed.sockets.leave(self.pass_.user_id)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if not self._joined or self._has_left:
            return  # what came before the end of the connection is not worked off after it
        try:
            message = self._read(text_data)
            match message["op"]:
                case "subscribe":
                    await self._subscribe(message["topic"], message.get("after"))
                case "lines":
                    await self._send_lines(message["topic"], message["from"], message["count"])
                case _:
                    self._unsubscribe(message["topic"])
        except BadMessage as bad:
            await self.close(bad.code)
        except _Left:
            return

    def _read(self, text: str | None) -> dict[str, Any]:
        """One message of the client, checked.

        Raises:
            BadMessage: it is not a message (B61).
        """
        if self._messages.take(LINES_COST) > 0:
            raise BadMessage(AGAINST_RULES)
        if text is None:
            raise BadMessage(NOT_TEXT)
        if len(text) > LONGEST_MESSAGE:
            raise BadMessage(TOO_LONG)
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise BadMessage(NOT_JSON) from None
        if not isinstance(message, dict) or not _is_topic(message.get("topic")):
            raise BadMessage(AGAINST_RULES)
        match message.get("op"):
            case "subscribe" | "unsubscribe":
                self._messages.take(1 - LINES_COST)
                is_right = message.get("after") is None or _is_count(message["after"])
            case "lines":
                first, count = message.get("from"), message.get("count")
                is_right = _is_count(first) and _is_count(count, MOST_LINES_ASKED)
            case _:
                is_right = False
        if not is_right:
            raise BadMessage(AGAINST_RULES)
        return message

    async def _subscribe(self, topic: str, after: int | None) -> None:
        if topic not in self._subscriptions and len(self._subscriptions) >= MOST_TOPICS:
            raise BadMessage(AGAINST_RULES)
        target = passes.parse_topic(topic) if len(topic) <= passes.LONGEST_TOPIC else None
        if target is None or not await database_sync_to_async(passes.may_read)(self.pass_, target):
            await self.send(text_data=frames.refused(topic[: passes.LONGEST_TOPIC], 404))
            return
        source = self._feed.subscribe(self, target)
        self._subscriptions[topic] = _Subscription(target, source, after)

    def _unsubscribe(self, topic: str) -> None:
        subscription = self._subscriptions.pop(topic, None)
        if subscription is not None:
            self._feed.unsubscribe(self, subscription.target)

    async def _send_lines(self, topic: str, first: int, count: int) -> None:
        """Send lines of a subscribed log by number; rights are checked on subscribing and regularly after."""
        subscription = self._subscriptions.get(topic)
        if subscription is None or subscription.target.kind != "log":
            await self._deliver(frames.lines(topic[: passes.LONGEST_TOPIC], first, None))
            return
        target = subscription.target
        folder = settings.HOME.job(target.job_id).attempt(target.attempt)
        log, index = folder.log(target.rank), folder.log_index(target.rank)
        shown = await read_beside(lambda: show_lines(log, index, first, count))
        await self._deliver(frames.lines(topic, first, dict(shown)))

    def mark(self, source: Source) -> None:
        """The topic has something new; sent when the client has taken what came before."""
        self._dirty.add(source.topic)
        self._wake.set()

    def expel(self) -> None:
        self._expelled = asyncio.ensure_future(self.close(SIGNED_OUT))

    async def _send_batches(self) -> None:
        """Send, topic by topic, what is newest at the time of sending: a slow client skips, it never queues."""
        try:
            await self._send_while_there()
        except _Left:
            return
        except Exception:  # whatever it is, an open socket that stays silent would be worse
            logger.exception(
                "A live view's sender failed; its socket is closed, so that the page reconnects."
            )
            with contextlib.suppress(OSError):
                await self.close(FAILED)

    async def _send_while_there(self) -> None:
        while True:
            try:
                async with asyncio.timeout(frames.PING_S):
                    await self._wake.wait()
            except TimeoutError:
                await self._deliver(frames.ping())
                continue
            self._wake.clear()
            topics, self._dirty = self._dirty, set()
            for topic in topics:
                if subscription := self._subscriptions.get(topic):
                    await self._send_newest(topic, subscription)

    async def _send_newest(self, topic: str, subscription: _Subscription) -> None:
        now = time.monotonic()
        # A little early is fine: the source keeps the rate, this keeps one that is behind from rushing.
        if (wait_s := subscription.sent_at + subscription.source.interval_s * 0.8 - now) > 0:
            self._mark_later(topic, wait_s)
            return
        if subscription.target.kind == "log" and (wait_s := self._log_bytes.take(0)) > 0:
            self._mark_later(topic, wait_s)
            return
        try:
            batch = await subscription.source.batch(subscription.seq)
        except (OSError, OrchestratorError):
            # A file that is away for a moment must not end the other topics; the next look tries again.
            logger.exception("The topic %s could not be read.", topic)
            return
        for text in batch.frames:
            await self._deliver(text)
        self._log_bytes.take(batch.size_bytes)
        if batch.frames:
            subscription.seq, subscription.sent_at = batch.seq, now
        if batch.more:
            self._mark_later(topic, subscription.source.interval_s)

    def _mark_later(self, topic: str, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._mark_topic, topic)

    def _mark_topic(self, topic: str) -> None:
        self._dirty.add(topic)
        self._wake.set()

    async def _deliver(self, text: str) -> None:
        """Hand one frame to the socket; who takes nothing for long is let go, and resumes when back.

        Raises:
            _Left: there is nobody to send to any more.
        """
        try:
            async with asyncio.timeout(STALLED_S):
                await self.send(text_data=text)
        except TimeoutError:
            self._has_left = True
            await self.close(STALLED)
            raise _Left from None
        except OSError:  # how the server reports that the client has gone
            self._has_left = True
            raise _Left from None


def _is_topic(value: object) -> bool:
    return isinstance(value, str) and why_unwritable(value) is None


def _is_count(value: object, most: int = LARGEST_SEQ) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def read_headers(scope: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The headers by their small names, and the cookies."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    try:
        jar = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return headers, {}
    return headers, {name: morsel.value for name, morsel in jar.items()}
