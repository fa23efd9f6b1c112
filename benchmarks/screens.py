"""``python -m benchmarks.screens``: every page in ``docs/screens/``, wide and narrow, light and dark, full, empty and broken.

git ignores the folder; the README's pictures are copies of a few of them in ``docs/pictures/``.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser

from benchmarks.browsing import Visitor, chromium, submit, wait_for_numbers
from benchmarks.figures import ROOT
from benchmarks.server import Client, Server

FOLDER = ROOT / "docs" / "screens"
DEVICES = "sim:8x2GiB"
WIDTHS = (1440, 390)
SCHEMES = ("light", "dark")
SETTLE_MS = 2_500
FULL_WAIT_S = 20.0
LONGEST_MS = 60_000
MEASURED_WITHIN_MS = 600_000
DRAWN = """() => [...document.querySelectorAll(".chart-plot")]
  .map(plot => [plot, plot.getBoundingClientRect()])
  .filter(([, { top, height }]) => height && top < innerHeight)
  .every(([plot]) => plot.querySelector(".main-svg, .chart-svg path"))"""
BROKEN_SCRIPT = "raise SystemExit('CUDA was not what it seemed')\n"


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with chromium() as browser:
        with Server(DEVICES) as server:
            visitor = Visitor(browser, server)
            shoot(
                visitor,
                "empty",
                {"overview": "/", "queue": "/queue", "jobs": "/jobs", "datasets": "/datasets"},
            )
            measure(visitor)
            pages = fill(server.client())
            time.sleep(FULL_WAIT_S)  # the time line and the sparklines get something to show
            shoot(visitor, "", pages)
            shoot_palette(visitor)
        shoot_broken(browser)
    print(
        f"{len(list(FOLDER.glob('*.png')))} pictures are in {FOLDER.relative_to(ROOT)}"
    )  # a command's answer
    return 0


def measure(visitor: Visitor) -> None:
    """A small comparison of strategies, so that its page has something to show."""
    with visitor.context() as context:
        page = context.new_page()
        page.goto(f"{visitor.url}/benchmarks")
        for name, text in (("Batch sizes", "64"), ("Timed steps", "6")):
            page.get_by_label(name).fill(text)
        page.get_by_role("button", name="Run", exact=True).click()
        page.locator("#cells-title").wait_for(timeout=MEASURED_WITHIN_MS)


def fill(client: Client) -> dict[str, str]:
    """Jobs that run, wait, share, ended and failed; the pages to show them on."""
    data = Path(tempfile.gettempdir()) / "data" / "shakespeare.txt"
    data.parent.mkdir(exist_ok=True)
    data.write_text("To be, or not to be\n" * 50_000)
    client.post("/datasets", {"name": "shakespeare", "path": str(data), "description": "all plays"})
    first = submit(client, "tiny-gpt", *busy(1200, 6), "--lr", "3e-4", gpus=2, tags=["paper-x"])
    second = submit(client, "tiny-gpt-lr", *busy(900, 4), "--lr", "1e-3", gpus=2, tags=["paper-x"])
    submit(client, "vit-s", *busy(700, 3), gpu_memory_gib=1)
    submit(client, "ner", *busy(400, 2), gpu_memory_gib=0.75)
    seeds = submit(
        client, "seeds", "--steps", "3000", total_steps=3000, array="0-2", datasets=["shakespeare@1"]
    )
    failed = client.post("/jobs", {"name": "broken", "source": {"text": BROKEN_SCRIPT}, "max_retries": 0})[
        "id"
    ]
    for job in (first, second):
        wait_for_numbers(client, job)
    client.wait_for_end(failed)
    submit(client, "big-7b", gpus=8)
    submit(client, "eval", gpus=4)
    return {
        "overview": "/",
        "queue": "/queue",
        "jobs": "/jobs",
        "job": f"/jobs/{first}",
        "job-failed": f"/jobs/{failed}",
        "compare": f"/compare?jobs={first},{second},{seeds}",
        "submit": "/submit",
        "datasets": "/datasets",
        "environments": "/environments",
        "sweeps": "/sweeps",
        "models": "/models",
        "services": "/services",
        "service-new": "/new-service",
        "sessions": "/sessions",
        "sweep-new": "/sweeps/new",
        "benchmarks": "/benchmarks",
        "pools": "/pools",
        "bookings": "/bookings",
        "projects": "/projects",
        "share": "/share",
        "device": "/devices/sim-0",
        "usage": "/usage",
        "people": "/people",
        "server": "/server",
        "messages": "/notices",
        "account": "/account",
        "audit": "/audit",
        "api-docs": "/api/v1/docs",
        "admin": "/admin/",
    }


def busy(held_mib: int, work_ms: int) -> list[str]:
    """Arguments with which the script shows on its device."""
    return ["--hold-mib", str(held_mib), "--work-ms", str(work_ms)]


def shoot(visitor: Visitor, suffix: str, pages: Mapping[str, str]) -> None:
    for width in WIDTHS:
        for scheme in SCHEMES:
            with visitor.context(width=width, color_scheme=scheme) as context:
                page = context.new_page()
                for name, address in pages.items():
                    page.goto(visitor.url + address)
                    page.wait_for_timeout(SETTLE_MS)
                    page.wait_for_function(DRAWN, timeout=LONGEST_MS)
                    page.screenshot(path=picture(name, suffix, width, scheme))


def shoot_palette(visitor: Visitor) -> None:
    for scheme in SCHEMES:
        with visitor.context(color_scheme=scheme) as context:
            page = context.new_page()
            page.goto(visitor.url)
            page.keyboard.press("Control+k")
            page.get_by_role("combobox", name="Search or run").fill("tiny")
            page.wait_for_timeout(SETTLE_MS)
            page.screenshot(path=picture("palette", "", 1440, scheme))


def shoot_broken(browser: Browser) -> None:
    """A server whose readings have stopped: what it shows, and what it says."""
    with Server(DEVICES) as server:
        visitor = Visitor(browser, server)
        submit(server.client(), "tiny-gpt")
        time.sleep(5)
        with agent_stopped(server.home):
            time.sleep(12)
            shoot(visitor, "broken", {"overview": "/"})


@contextmanager
def agent_stopped(home: Path) -> Iterator[None]:
    """The server's agent halted, as on a machine that is far too busy."""
    own = [
        int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _is_agent_of(each, home)
    ]
    for process in own:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in own:
            os.kill(process, signal.SIGCONT)


def _is_agent_of(process: Path, home: Path) -> bool:
    try:
        command, variables = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
    except OSError:
        return False  # it ended, or is another person's
    return (
        b"orchestrator.management\0agent" in command and f"BERTH_HOME={home}\0".encode() in variables + b"\0"
    )


def picture(name: str, suffix: str, width: int, scheme: str) -> Path:
    return FOLDER / f"{'-'.join(part for part in (name, suffix, str(width), scheme) if part)}.png"


if __name__ == "__main__":
    sys.exit(main())
