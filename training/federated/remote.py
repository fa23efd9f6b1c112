"""A site of a federation at another Berth: the messages of a site here, over HTTPS, with the invitation's secret alone.

A request that fails is sent again for as long as the federation's patience; a message keeps its id, so it counts once.
"""

import ipaddress
import json
import os
import secrets
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from types import FrameType
from typing import IO, Any, NoReturn, TypedDict
from urllib.parse import urlencode, urlsplit

from training.federated.channels import Gone
from training.federated.messages import Message, decode, encode
from training.federated.privacy import Privacy
from training.federated.site import Local, Site, prepared
from training.recipes.named import RecipeError

PROTOCOL = 1
PART_BYTES = 4 << 20
ANSWER_S = 60.0  # of one request
FAREWELL_S = 5.0  # of a site that is being stopped
FIRST_PATIENCE_S = 600.0  # until the federation has said its own
MOST_BYTES = 4 << 30  # of one message
_MOST_DIGITS = 20  # of a length; Python reads no number of thousands of digits
_LONGEST_PAUSE_S = 10.0
_HEARD_EVERY_S = 30.0  # of a site that prepares itself
_POLL_S = 1.0  # of a site that waits for long
_OVER = 410


class Refused(RecipeError):
    """The other Berth lets this site take no part; the sentence is its own."""


class Unreachable(RecipeError):
    """The other Berth did not answer for as long as the federation waits for a site."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the secret to another place."""

    def redirect_request(self, *_: Any) -> None:
        return None


class RoundSettings(TypedDict):
    """What the federation's Berth answers to a site that joins."""

    protocol: int
    federation: str
    name: str  # of the site
    number: int
    sites: int
    epochs: int
    batch_size: int
    learning_rate: float
    proximal: float
    clip: float | None  # None: no noise
    noise: float
    delta: float
    patience_s: float


@dataclass(slots=True)
class Door:
    """The federation's Berth, as its invitation names it.

    Args:
        patience_s: how long requests are sent again.
    """

    link: str
    patience_s: float = FIRST_PATIENCE_S
    _opener: urllib.request.OpenerDirector = field(init=False)
    _base: str = field(init=False)
    _secret: str = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.link.strip())
        if parts.scheme not in {"http", "https"} or not parts.hostname or not parts.fragment:
            raise RecipeError("The invitation is no link; ask the federation's owner for a new one.")
        if parts.scheme == "http" and not _is_here(parts.hostname):
            raise RecipeError(
                f"{parts.hostname} has no HTTPS, so the invitation would cross the network in the open."
            )
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/federated')}/api/v1/rounds"
        self._secret = parts.fragment
        handlers: list[urllib.request.BaseHandler] = [
            _NoRedirect(),
            urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        ]
        if parts.scheme == "http":  # stays on this machine, so no proxy may see it
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    @property
    def host(self) -> str:
        return urlsplit(self._base).netloc

    def settings(self) -> RoundSettings:
        """What the rounds train with; asking for it joins them."""
        answer: RoundSettings = json.loads(self.ask("GET", "", read=_all_of).body)
        return answer

    def ask(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        *,
        read: Callable[[IO[bytes], int], bytes],
        within_s: float | None = None,
    ) -> "Answer":
        """Send a request until it is answered.

        Raises:
            Refused: the other Berth says no.
            Unreachable: it does not answer.
            Gone: the federation is over.
        """
        deadline_s = time.monotonic() + (self.patience_s if within_s is None else within_s)
        pause_s, told = 0.2, False
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return self._send(method, path, data, read, max(0.1, min(ANSWER_S, left_s)))
            except _TryAgain as error:
                if left_s <= pause_s:
                    raise Unreachable(
                        f"{self.host} did not answer for {self.patience_s:g} s: {error}."
                    ) from error
                if not told and within_s is None:
                    sys.stdout.write(f"{self.host} cannot be reached ({error}); trying again.\n")
                    told = True
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        read: Callable[[IO[bytes], int], bytes],
        timeout_s: float,
    ) -> "Answer":
        headers = {"Authorization": f"Token {self._secret}", "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(self._base + path, data, headers, method=method)  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                length = _length_of(answer.headers.get("Content-Length") or "")
                body = read(answer, length) if length <= MOST_BYTES else b""
                if max(length, len(body)) > MOST_BYTES:
                    raise Gone(f"{self.host} sent a message of more than {MOST_BYTES:,} bytes")
                return Answer(answer.status, answer.headers.get("X-Message-Id") or "", body)
        except urllib.error.HTTPError as error:
            with error:
                self._refuse(error)
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"{self.host} has no certificate that this server trusts: {error.verify_message}."
            ) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise Refused(
                    f"{self.host} has no certificate that this server trusts: {reason.verify_message}."
                ) from error
            raise _TryAgain(str(reason) or type(error).__name__) from error

    def _refuse(self, error: urllib.error.HTTPError) -> NoReturn:
        try:
            sentence = str(json.loads(error.read(1 << 16))["detail"])
        except (ValueError, KeyError, TypeError, OSError, HTTPException):
            sentence = f"{self.host} answered {error.code}"
        if error.code == _OVER:
            raise Gone(sentence) from error
        if error.code in {408, 425, 429} or error.code >= 500:
            raise _TryAgain(sentence) from error
        if error.code == 409:
            raise _Behind(sentence) from error
        raise Refused(f"{self.host}: {sentence}") from error


class _TryAgain(Exception):
    """A request that may be answered later."""


class _Behind(Exception):
    """Parts of a message are missing at the other Berth."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request."""

    status: int
    name: str  # of the message
    body: bytes


def _length_of(text: str) -> int:
    """The length that an answer tells; 0: it tells none that can be read, and ends with its connection."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS else 0


def _all_of(answer: IO[bytes], length: int) -> bytes:
    body = answer.read(length or MOST_BYTES + 1)
    if len(body) < length:
        raise OSError("the answer was cut")
    return body


class RemoteChannel:
    """The way between a site and the server of a federation at another Berth."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._done = ""
        self._polled_s, self._pause_s = 0.0, 0.0

    def send(self, message: Message) -> None:
        self.send_within(message, None)

    def send_within(self, message: Message, within_s: float | None) -> None:
        """Send a message in parts.

        Raises:
            Gone, Refused, Unreachable: as ``Door.ask``.
        """
        data, name, offset = encode(message), secrets.token_hex(16), 0
        while offset < len(data):
            query = urlencode({"offset": offset, "size": len(data)})
            part = data[offset : offset + PART_BYTES]
            try:
                answer = self._door.ask(
                    "PUT", f"/messages/{name}?{query}", part, read=_all_of, within_s=within_s
                )
            except _Behind:
                offset = 0
                continue
            offset = max(0, int(json.loads(answer.body)["received_bytes"]))

    def receive(self) -> Message | None:
        """The next message; asks less and less often while there is none."""
        now_s = time.monotonic()
        if now_s < self._polled_s + self._pause_s:
            return None
        answer = self._door.ask("GET", f"/messages?{urlencode({'done': self._done})}", read=_all_of)
        self._polled_s = time.monotonic()
        if answer.status == 204:
            self._pause_s = min(_POLL_S, max(0.05, 1.5 * self._pause_s))
            return None
        self._done, self._pause_s = answer.name, 0.0
        return decode(answer.body)

    def close(self) -> None:
        """Nothing is open between messages."""


class _Stopped(BaseException):
    """The job is being stopped; no code of the site's owner catches it."""


def join(link: str, model: str, data: str, data_path: str | None) -> None:
    """Take part as the site that an invitation names.

    Raises:
        RecipeError: the other Berth lets it take no part, or is of another version.
    """
    door = Door(link)
    try:
        settings = door.settings()
    except Gone as error:
        raise RecipeError(f"{str(error)[:1].upper()}{str(error)[1:].rstrip('.')}.") from error
    if settings.get("protocol") != PROTOCOL:
        raise RecipeError(
            f"{door.host} speaks version {settings.get('protocol')} of the rounds, and this Berth {PROTOCOL}; "
            "update the older one."
        )
    local = local_of(settings, model, data, data_path)
    door.patience_s = float(settings["patience_s"])
    sys.stdout.write(
        f"Joined {settings['federation']} at {door.host} as {settings['name']}, site {settings['number']} of "
        f"{settings['sites']}: {_words_of(local)}.\n"
    )
    sys.stdout.flush()
    channel = RemoteChannel(door)
    run = secrets.token_hex(8)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        number = int(settings["number"])
        with _heard(door):
            model_here, data_here = prepared(local, number)
        Site(local, number, model_here, data_here, channel, run).run()
    except Gone as error:
        sys.stdout.write(f"The part of this site is over: {str(error).rstrip('.')}.\n")
    except _Stopped:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _say_farewell(channel, run, "its job was stopped")
        raise SystemExit(128 + signal.SIGTERM) from None
    except (Refused, Unreachable):
        raise  # nobody there listens
    except Exception:
        _say_farewell(channel, run, "its job has failed")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _heard(door: Door) -> Iterator[None]:
    """Keep asking: a site that is silent beyond the patience is left out, and its data may take longer than that."""
    is_over = threading.Event()

    def ask() -> None:
        # What is wrong with an answer, the site hears by its own requests.
        while not is_over.wait(min(_HEARD_EVERY_S, door.patience_s / 4)):
            with suppress(Gone, RecipeError, _Behind):
                door.ask("GET", "", read=_all_of, within_s=door.patience_s / 4)

    threading.Thread(target=ask, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _stop(_: int, __: FrameType | None) -> NoReturn:
    raise _Stopped


def _say_farewell(channel: RemoteChannel, run: str, why: str) -> None:
    """Tell the federation that no answer will come, so that no round waits for it; not for long, as SIGKILL follows."""
    message = Message("farewell", {"from": run, "why": why})
    try:
        channel.send_within(message, FAREWELL_S)
    except (Gone, RecipeError, _Behind) as error:
        sys.stdout.write(f"The federation could not be told of the end: {error}\n")


def local_of(settings: RoundSettings, model: str, data: str, data_path: str | None) -> Local:
    """How this site trains: as the federation says, with code and data from here."""
    clip, noise = settings["clip"], settings["noise"]
    return Local(
        model=model,
        data=data,
        data_path=data_path,
        sites=int(settings["sites"]),
        epochs=int(settings["epochs"]),
        batch_size=int(settings["batch_size"]),
        learning_rate=float(settings["learning_rate"]),
        proximal=float(settings["proximal"]),
        privacy=None if clip is None else Privacy(float(clip), float(noise), float(settings["delta"])),
        seed=secrets.randbits(20),  # the other Berth need not know in which order data are read
    )


def _words_of(local: Local) -> str:
    privacy = (
        f"updates clipped to {local.privacy.clip:g}, noise {local.privacy.noise:g}"
        if local.privacy
        else "no noise"
    )
    return f"{local.epochs} epochs a round, {privacy}"


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def invitation(variable: str) -> str:
    """The link in a variable, which is taken out of the environment: no program that is started needs it."""
    link = os.environ.pop(variable, "")
    if not link:
        raise RecipeError(
            "A site joins with: berth federated join LINK train.py --model train.py:build_model"
        )
    return link
