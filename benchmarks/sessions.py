"""How soon a notebook can be used, what the way through Berth costs, and whether idle sessions and attacks are recognised.

A program that echoes, and a download, are asked through Berth as the browser of the session's owner would, and on a port
of the program's own, as that browser would without Berth; both in turns.  The cases of idle sessions and the attacks are those of the tests, counted here.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
from playwright.sync_api import Page
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from benchmarks.browsing import Visitor, chromium
from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.server import Client, Server, free_port
from benchmarks.stats import median, spread

FIGURES = (
    Figure(
        "click_to_notebook_s",
        "s",
        "from Start on the page to a notebook with an idle kernel, environment there, median",
        6,
    ),
    Figure(
        "keystroke_added_ms", "ms", "an echo over a websocket above one on the program's own port, median", 5
    ),
    Figure(
        "download_ratio",
        "",
        "speed of a download of 100 MiB over that from the program's own port, median",
        0.7,
        at_least=True,
    ),
    Figure(
        "idle_cases_right",
        "",
        "of 24 sessions that are at work or idle, those judged right",
        24,
        at_least=True,
    ),
    Figure("attacks_refused", "", "attacks on the proxy that fail", 20, at_least=True),
)
SCRIPT = ROOT / "benchmarks" / "scripts" / "session.py"
PORT = re.compile(r"^port (\d+)$", re.MULTILINE)
STARTS = 3
KEYS = 500
DOWNLOADS = 7
WITHIN_S = 600.0


def measure() -> Outcome:
    outcome = Outcome()
    ports = {"BERTH_SESSIONS_PORT": str(free_port())}
    with Server("cpu:2", **ports) as server, chromium() as browser:
        visitor = Visitor(browser, server)
        _measure_way(server, visitor, outcome)
        _measure_notebook(server, visitor, outcome)
    outcome.figures["idle_cases_right"] = _passed("tests/agent/test_session_work.py", "at_work_if")
    outcome.figures["attacks_refused"] = _passed("tests/sessions/test_attacks.py", "")
    return outcome


def _measure_way(server: Server, visitor: Visitor, outcome: Outcome) -> None:
    """Keystrokes and downloads, through Berth and on the socket in turns."""
    client = server.client()
    job = client.post(
        "/jobs",
        {
            "kind": "session",
            "command": ["python", "train.py"],
            "source": {"text": SCRIPT.read_text()},
            "gpus": 1,
        },
    )["id"]
    _wait(lambda: _opens(client, job) and PORT.search(server.read_log(job)))
    found = PORT.search(server.read_log(job))
    own = f"127.0.0.1:{found[1] if found else 0}"
    with visitor.enter(job) as (base, cookies):
        origin = Origin(base.partition("/s/")[0])
        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
        through = connect(
            f"{base.replace('http', 'ws', 1)}ws", additional_headers={"Cookie": cookie}, origin=origin
        )
        with through, connect(f"ws://{own}/ws") as direct:
            keys = [(1000 * _echo(through), 1000 * _echo(direct)) for _ in range(KEYS)][20:]
        with httpx.Client(cookies=cookies, timeout=WITHIN_S) as browser:
            loads = [
                (_download(browser, f"{base}file"), _download(browser, f"http://{own}/file"))
                for _ in range(DOWNLOADS)
            ]
    outcome.figures["keystroke_added_ms"] = median([each[0] for each in keys]) - median(
        [each[1] for each in keys]
    )
    outcome.figures["download_ratio"] = median([direct_s / through_s for through_s, direct_s in loads])
    for at, name in enumerate(("through", "direct")):
        outcome.details[f"keystroke_{name}_ms"] = spread([each[at] for each in keys], 2)
        outcome.details[f"download_{name}_s"] = spread([each[at] for each in loads], 3)
    client.post(f"/sessions/{job}/stop", {})
    _wait(lambda: client.get(f"/jobs/{job}")["state"] == "cancelled")


def _opens(client: Client, job: str) -> bool:
    found = next(each for each in client.get("/sessions")["results"] if each["id"] == job)
    if found["state"] in {"failed", "cancelled"}:
        raise RuntimeError(f"the session {found['state']}: {found['reason']}")
    return bool(found["opens"])


def _echo(connection: ClientConnection) -> float:
    began = time.perf_counter()
    connection.send("x")
    connection.recv()
    return time.perf_counter() - began


def _download(client: httpx.Client, address: str) -> float:
    began = time.perf_counter()
    with client.stream("GET", address) as answer:
        answer.raise_for_status()
        count = sum(len(piece) for piece in answer.iter_raw(1 << 20))
    took_s = time.perf_counter() - began
    if count != 100 * 1024**2:
        raise RuntimeError(f"a download had {count} bytes")
    return took_s


def _measure_notebook(server: Server, visitor: Visitor, outcome: Outcome) -> None:
    """The first session builds the environment, which is not counted."""
    times_s: list[float] = []
    links_s: list[float] = []
    for number in range(STARTS + 1):
        with visitor.context() as context:
            page = context.new_page()
            page.set_default_timeout(1000 * WITHIN_S)
            link_s, notebook_s = _open_notebook(page, visitor.url)
        if number:
            links_s.append(link_s)
            times_s.append(notebook_s)
        _stop_all(server.client())
    outcome.figures["click_to_notebook_s"] = median(times_s)
    outcome.details["click_to_notebook_s"] = spread(times_s, 2)
    outcome.details["click_to_open_link_s"] = spread(links_s, 2)


def _open_notebook(page: Page, url: str) -> tuple[float, float]:
    """Seconds from Start to the link that opens the session, and to a notebook with an idle kernel."""
    page.goto(f"{url}/sessions")
    began = time.perf_counter()
    page.get_by_role("button", name="Start", exact=True).click()
    link = page.locator("#sessions-now").get_by_role("link", name="Open")
    link.wait_for()
    link_s = time.perf_counter() - began
    with page.context.expect_page() as opened:
        link.click()
    lab = opened.value
    lab.set_default_timeout(1000 * WITHIN_S)
    lab.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    lab.locator(".jp-Notebook .jp-Cell .cm-content").first.wait_for()
    lab.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for()
    return link_s, time.perf_counter() - began


def _stop_all(client: Client) -> None:
    for each in client.get("/sessions")["results"]:
        if each["ended_at"] is None:
            client.post(f"/sessions/{each['id']}/stop", {})
    _wait(lambda: all(each["ended_at"] for each in client.get("/sessions")["results"]))


def _passed(file: str, chosen: str) -> int:
    """The tests of a file that pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:randomly", file]
    done = subprocess.run(
        [*command, *(["-k", chosen] if chosen else [])], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = re.search(r"(\d+) passed", done.stdout)
    return int(found[1]) if found else 0


def _wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("a session did not come to where it should")
        time.sleep(0.05)
