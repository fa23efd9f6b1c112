"""Opens the connection for one notice: ``python -m orchestrator.notices.post``, a JSON object on standard input.

A process of its own, without Django, keys or Berth's environment: whatever an address makes a library do,
there is nothing here to be had, and no address inside the lab's network can be reached.
"""

import importlib
import json
import logging
import sys
from typing import Any

from orchestrator.notices.reach import guard_sockets, is_public, resolve

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
# Of these the host in the address is where the connection goes.
GIVEN_HOST = PLAIN | {f"{name}s" for name in PLAIN} | {"mailto", "mailtos"}
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
    host = _host(scheme, service)
    if scheme in PLAIN and host.lower() not in allowed:
        return {"error": f"{scheme}:// sends without encryption; use {scheme}s://."}
    if host and host.lower() not in allowed:
        addresses = resolve(host)
        if not addresses:
            return {"error": f"There is no host {host} that this server can find."}
        if not all(map(is_public, addresses)):
            return {"error": f"{host} is inside this network; ask the server's operator to allow it."}
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


def _host(scheme: str, service: Any) -> str:
    if scheme not in GIVEN_HOST:
        return ""
    return str(getattr(service, "smtp_host", None) or service.host or "")


if __name__ == "__main__":
    sys.exit(main())
