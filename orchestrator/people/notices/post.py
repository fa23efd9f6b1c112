"""Send one notification: ``python -m orchestrator.people.notices.post``, with a JSON object on standard input.

This is a separate process without Django, keys or Berth's environment: an address that exploits a library
finds no secrets here, and cannot reach the lab's network.
"""

import importlib
import json
import logging
import sys
from typing import Any, TypedDict

from orchestrator.facts.events import NoticeFact
from orchestrator.facts.record import Fact, FactRecord, fact
from orchestrator.people.notices.reach import destination_of, guard_sockets, is_public

# Services with a fixed host, or with TLS to a given host. None that act on this machine.
SECURE = frozenset(
    [
        "discord",
        "slack",
        "msteams",
        "workflows",
        "tgram",
        "zulip",
        "pover",
        "pbul",
        "gchat",
        "wxteams",
        "feishu",
        "lark",
        "dingtalk",
        "wecombot",
        "mailto",
        "mailtos",
        "mmosts",
        "rockets",
        "matrixs",
        "ntfys",
        "gotifys",
        "jsons",
        "forms",
        "xmls",
        "signals",
        "ntfy",
    ]
)
# The same without TLS: only for hosts that the operator allows.
PLAIN = frozenset(["json", "form", "xml", "mmost", "rocket", "matrix", "gotify", "signal"])


class NoticeRequest(TypedDict):
    """What the program gets on its standard input."""

    url: str
    title: str | None  # None: only check the address
    body: str
    allowed: list[str]  # hosts of the lab's network


class NoticeAnswer(TypedDict, total=False):
    """What the program answers."""

    shown: str  # the address without secrets
    error: FactRecord  # a NoticeFact


def main() -> int:
    request: NoticeRequest = json.load(sys.stdin)
    guard_sockets(request["allowed"])
    logging.getLogger("apprise").setLevel(logging.ERROR)
    json.dump(_answer(request), sys.stdout)
    return 0


def _answer(request: NoticeRequest) -> NoticeAnswer:
    apprise: Any = importlib.import_module("apprise")  # late import: after the guard; it has no types

    url, allowed = str(request["url"]), [str(host).lower() for host in request["allowed"]]
    scheme = url.partition("://")[0].lower()
    if scheme not in SECURE | PLAIN:
        return {"error": fact(NoticeFact.NO_ADDRESS).as_json()}
    service = apprise.Apprise.instantiate(url)
    if service is None:
        return {"error": fact(NoticeFact.NO_ADDRESS).as_json()}
    probe = apprise.Apprise.instantiate(url)  # a second instance: a service waits between two messages
    host, addresses = destination_of(lambda: probe.notify(title="A test", body="A test"))
    if host.lower() not in allowed and (error := _why_not(scheme, service, host, addresses, url)):
        return {"error": error.as_json()}
    shown = service.url(privacy=True).partition("?")[0]
    if request.get("title") is None:
        return {"shown": shown}
    with apprise.LogCapture(level=logging.WARNING) as log:
        sent = service.notify(body=request["body"], title=request["title"])
        lines = log.getvalue().strip().splitlines()
    if sent:
        return {"shown": shown}
    reason = lines[-1].partition(" - ")[2] or lines[-1] if lines else ""
    error = fact(NoticeFact.REFUSED, reason=reason[:300]) if reason else fact(NoticeFact.NO_REASON)
    return {"shown": shown, "error": error.as_json()}


def _why_not(scheme: str, service: Any, host: str, addresses: list[str], url: str) -> Fact | None:
    """Why an address may not be used."""
    if not all(map(is_public, addresses)):
        return fact(NoticeFact.INSIDE_NETWORK, host=host)
    # Without a host, ntfy:// uses the public service, encrypted.
    if scheme in PLAIN or (scheme == "ntfy" and service.mode == "private"):
        return fact(NoticeFact.NOT_ENCRYPTED, scheme=scheme)
    if not addresses and host and host.lower() in url.lower():  # a fixed service may be down for a while
        return fact(NoticeFact.HOST_UNKNOWN, host=host)
    return None


if __name__ == "__main__":
    sys.exit(main())
