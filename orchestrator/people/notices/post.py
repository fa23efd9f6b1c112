"""Opens the connection for one notice: ``python -m orchestrator.people.notices.post``, a JSON object on standard input.

A process of its own, without Django, keys or Berth's environment: whatever an address makes a library do,
there is nothing here to be had, and no address inside the lab's network can be reached.
"""

import importlib
import json
import logging
import sys
from typing import Any

from orchestrator.people.notices.reach import destination_of, guard_sockets, is_public

# Services that need no host, or use TLS with the one they are given. Nothing that acts on this machine.
SECURE = frozenset(
    [
        *("discord", "slack", "msteams", "workflows", "tgram", "zulip", "pover", "pbul", "gchat", "wxteams"),
        *(
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
        ),
        *("gotifys", "jsons", "forms", "xmls", "signals", "ntfy"),
    ]
)
# The same without TLS: only to hosts that the operator allows.
PLAIN = frozenset(["json", "form", "xml", "mmost", "rocket", "matrix", "gotify", "signal"])
NO_ADDRESS = "This is no address that notifications can go to; see the list in the how-to."


def main() -> int:
    request: dict[str, Any] = json.load(sys.stdin)
    guard_sockets(request["allowed"])
    logging.getLogger("apprise").setLevel(logging.ERROR)
    json.dump(_answer(request), sys.stdout)
    return 0


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    apprise: Any = importlib.import_module("apprise")  # after the guard; it has no types

    url, allowed = str(request["url"]), [str(host).lower() for host in request["allowed"]]
    scheme = url.partition("://")[0].lower()
    if scheme not in SECURE | PLAIN:
        return {"error": NO_ADDRESS}
    service = apprise.Apprise.instantiate(url)
    if service is None:
        return {"error": NO_ADDRESS}
    probe = apprise.Apprise.instantiate(url)  # another one: a service rests between two messages
    host, addresses = destination_of(lambda: probe.notify(title="A test", body="A test"))
    if host.lower() not in allowed and (error := _why_not(scheme, service, host, addresses, url)):
        return {"error": error}
    shown = service.url(privacy=True).partition("?")[0]
    if request.get("title") is None:
        return {"shown": shown}
    with apprise.LogCapture(level=logging.WARNING) as said:
        sent = service.notify(body=request["body"], title=request["title"])
        lines = said.getvalue().strip().splitlines()
    if sent:
        return {"shown": shown}
    last = lines[-1].partition(" - ")[2] or lines[-1] if lines else "the service gave no reason"
    return {"shown": shown, "error": last[:300]}


def _why_not(scheme: str, service: Any, host: str, addresses: list[str], url: str) -> str:
    """Why an address may not be used; empty where it may."""
    if not all(map(is_public, addresses)):
        return f"{host} is inside this network; ask the server's operator to allow it."
    # Without a host of one's own, ntfy:// goes to its makers, encrypted.
    if scheme in PLAIN or (scheme == "ntfy" and service.mode == "private"):
        return f"{scheme}:// sends without encryption; use {scheme}s://."
    if not addresses and host and host.lower() in url.lower():  # a service's own host may be away for a while
        return f"There is no host {host} that this server can find."
    return ""


if __name__ == "__main__":
    sys.exit(main())
