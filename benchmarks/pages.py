"""What the pages weigh and how they move, in a real Chromium on a real server."""

import subprocess
import sys
import time
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page

from benchmarks import page_floods, page_tables, script_weights
from benchmarks.browsing import Visitor, chromium, submit, wait_for_numbers
from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.page_floods import measure_floods
from benchmarks.page_tables import measure_tables
from benchmarks.script_weights import measure_scripts
from benchmarks.server import Server
from benchmarks.stats import median, percentile, spread

FIGURES = (
    Figure("overview_lcp_ms", "ms", "Overview, nothing cached: the largest paint, median of 5", target=600),
    Figure("overview_bytes", "B", "Overview: everything that travelled until it stands", target=150_000),
    Figure("job_lcp_ms", "ms", "a job's page with charts: the largest paint, median of 5", target=1_000),
    Figure(
        "job_bytes",
        "B",
        "a job's page with charts: everything that travelled until they stand",
        target=300_000,
    ),
    Figure("tick_ms", "ms", "one tick of the wall, 8 devices: handling and drawing, median", target=8),
    Figure("chart_update_ms", "ms", "one chart of 8 series with 500 buckets drawn anew, median", target=50),
    Figure("pixel_p95_ms", "ms", "from a device's reading to the frame that shows it, 95 %", target=1_500),
    Figure("long_tasks", "", "tasks over 50 ms in 60 s of watching a running job", target=3),
    *page_floods.FIGURES,
    Figure(
        "page_500_lcp_ms", "ms", "a sweep's page with 500 trials: the largest paint, median of 5", target=800
    ),
    Figure("page_500_bytes", "B", "the same page: everything that travelled until it stands", target=300_000),
    Figure("brush_ms", "ms", "from a brush on its axes to the frame that shows it all, median", target=50),
    *page_tables.FIGURES,
    *script_weights.FIGURES,
    Figure("cli_start_ms", "ms", "`berth --help`, the interpreter included, median", target=150),
    Figure(
        "axe_violations", "", "WCAG 2.2 A and AA, every page: themes, forced colours, widths, 200 %", target=0
    ),
    Figure("cls_max", "", "layout shift of the worst page at 390, 768, 1024 and 1440 px", target=0.05),
    Figure(
        "overflow_pages", "", "pages that scroll sideways at any of 33 widths from 320 to 1600 px", target=0
    ),
    Figure("foreign_requests", "", "requests to other hosts, every page", target=0),
    Figure("csp_violations", "", "violations of the content security policy, every page", target=0),
)
DEVICES = "sim:8x80GiB"
SHIFT_WIDTHS = (390, 768, 1024, 1440)
WIDTHS = range(320, 1601, 40)  # of windows twice as wide at 200 % zoom as well
SHIFTS_MS = 3_000  # charts and the first live frames come within this
REDRAWN_MS = 1_200  # charts follow a theme and a width within a second
LOADS = 5
WATCH_S = 60
CLI_ROUNDS = 11
CLI = "from berth.cli import main; main()"
TICKS_S = 20
TRIALS = 500
BRUSHES = 21
PLACES = (
    "/",
    "/queue",
    "/jobs",
    "/submit",
    "/compare",
    "/datasets",
    "/pools",
    "/bookings",
    "/notices",
    "/usage",
    "/account",
)
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
    "resultTypes": ["violations"],
}
# What a page is looked at in, after one load: its media features, and the width of the window; 720 px are 1440 at 200 %.
LOOKS: dict[str, tuple[dict[str, Any], int]] = {
    "light": ({"color_scheme": "light"}, 1440),
    "dark": ({"color_scheme": "dark"}, 1440),
    "forced colours": ({"forced_colors": "active"}, 1440),
    "768 px": ({}, 768),
    "200 %": ({}, 720),
    "390 px": ({}, 390),
}
PLAIN = {"color_scheme": "light", "forced_colors": "none"}
OBSERVE = """
globalThis.seen = { lcp: 0, tasks: [], policy: 0, ticks: [], ages: [], shift: 0 };
new PerformanceObserver((list) => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) seen.shift += entry.value; })
  .observe({ type: "layout-shift", buffered: true });
new PerformanceObserver((list) => { for (const entry of list.getEntries()) seen.lcp = entry.startTime; })
  .observe({ type: "largest-contentful-paint", buffered: true });
new PerformanceObserver((list) => { for (const entry of list.getEntries()) seen.tasks.push([entry.startTime, entry.duration]); })
  .observe({ type: "longtask", buffered: true });
addEventListener("securitypolicyviolation", () => { seen.policy += 1; });
const add = WebSocket.prototype.addEventListener;
WebSocket.prototype.addEventListener = function (kind, listener, ...more) {
  if (kind !== "message") return add.call(this, kind, listener, ...more);
  return add.call(this, kind, (event) => {
    const began = performance.now();
    listener(event);
    const took = performance.now() - began;
    const frame = JSON.parse(event.data);
    if (frame.topic !== "devices" || frame.type !== "tick") return;
    seen.ticks.push(took);
    requestAnimationFrame(() => setTimeout(() => seen.ages.push(Date.now() - frame.data.t * 1000)));
  }, ...more);
};
"""
# From the key that moves a filter to the end of the frame that has drawn every chart and the table.
BRUSH = """
rounds => new Promise(done => {
  const axes = [...document.querySelectorAll(".axis")];
  const took = [];
  const turn = (round) => {
    if (round === rounds) return done(took);
    const began = performance.now();
    const key = round % 4 < 2 ? "ArrowUp" : "ArrowDown";
    axes[round % axes.length].dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    requestAnimationFrame(() => setTimeout(() => { took.push(performance.now() - began); turn(round + 1); }));
  };
  turn(0);
})"""
DRAW_ANEW = """
async ([charts, svg, rounds]) => {
  const [{ Chart }, { Drawing }] = await Promise.all([import(charts), import(svg)]);
  const box = document.createElement("div");
  document.getElementById("charts").append(box);
  const chart = new Chart(box, { title: "eight" });
  const numbers = Array.from({ length: 500 }, (_, at) => at);
  const took = [];
  for (let round = 0; round < rounds; round += 1) {
    chart.show(numbers.slice(0, 8).map((one) => {
      const y = numbers.map((at) => Math.sin(at / 20 + one + round));
      return { label: String(one), colour: `job-${one + 1}`, data: { x: numbers, y, y_min: y.map((v) => v - 0.1), y_max: y.map((v) => v + 0.1), n: numbers.map(() => 4), bucket: 4, total: 2000, nonfinite: [] } };
    }));
    const began = performance.now();
    chart.draw(Drawing);
    took.push(performance.now() - began);
  }
  chart.remove();
  return took;
}
"""


def measure() -> Outcome:
    outcome = Outcome()
    with Server(DEVICES) as server, chromium() as browser:
        client = server.client()
        job = submit(client, "tiny-gpt", tags=["paper-x"])
        other = submit(client, "higher-lr", "--lr", "1e-3")
        for each in (job, other):
            wait_for_numbers(client, each)
        visitor = Visitor(browser, server)
        measure_load(outcome, visitor, "overview", "/")
        measure_load(outcome, visitor, "job", f"/jobs/{job}")
        measure_wall(outcome, visitor)
        measure_watching(outcome, visitor, job)
        measure_floods(outcome, visitor, server)
        measure_sweep(outcome, visitor, server)
        measure_scripts(outcome)
        measure_cli(outcome)
        addresses = [*PLACES, f"/jobs/{job}", f"/compare?jobs={job},{other}", "/devices/sim-0"]
        measure_rules(outcome, visitor, addresses)
        measure_layout(outcome, visitor, addresses)
        measure_tables(outcome, visitor, server)  # last: no other page is measured with so many jobs
    return outcome


def measure_load(outcome: Outcome, visitor: Visitor, name: str, address: str) -> None:
    paints, sizes = [], []
    for _ in range(LOADS):
        with visitor.context() as context:
            page, received = _opened(context)
            page.goto(visitor.url + address)
            page.wait_for_load_state("networkidle")
            if name == "job":
                page.locator("#charts .chart-svg path").first.wait_for(state="attached")
            page.wait_for_timeout(1_500)
            paints.append(float(page.evaluate("seen.lcp")))
            sizes.append(float(sum(received)))
    outcome.figures[f"{name}_lcp_ms"], outcome.figures[f"{name}_bytes"] = median(paints), median(sizes)
    outcome.details[f"{name}_lcp_ms"] = spread(paints)
    outcome.details[f"{name}_bytes"] = spread(sizes, 0)


def measure_wall(outcome: Outcome, visitor: Visitor) -> None:
    with visitor.context() as context:
        page, _ = _opened(context)
        page.goto(visitor.url)
        page.wait_for_timeout(TICKS_S * 1000)
        seen = page.evaluate("seen")
    if len(seen["ticks"]) < TICKS_S:
        raise RuntimeError(f"Only {len(seen['ticks'])} ticks came in {TICKS_S} s.")
    outcome.figures["tick_ms"] = median(seen["ticks"])
    outcome.figures["pixel_p95_ms"] = percentile(seen["ages"], 95)
    outcome.details["tick_ms"] = spread(seen["ticks"], 2)
    outcome.details["pixel_ms"] = spread(seen["ages"])


def measure_watching(outcome: Outcome, visitor: Visitor, job: str) -> None:
    with visitor.context() as context:
        page, _ = _opened(context)
        page.goto(f"{visitor.url}/jobs/{job}")
        page.locator("#charts .chart-svg path").first.wait_for(state="attached")
        page.wait_for_timeout(5_000)
        began = page.evaluate("performance.now()")
        page.wait_for_timeout(WATCH_S * 1000)
        tasks = [took for at, took in page.evaluate("seen.tasks") if at >= began]
        outcome.figures["long_tasks"] = len(tasks)
        outcome.details["long_tasks_ms"] = [round(took) for took in tasks]
        outcome.details["load_tasks_ms"] = [
            round(took) for at, took in page.evaluate("seen.tasks") if at < began
        ]
        modules = [page.evaluate(page_floods.MODULE, name) for name in ("charts", "chart-svg")]
        took = page.evaluate(DRAW_ANEW, [*modules, 12])[1:]
    outcome.figures["chart_update_ms"] = median(took)
    outcome.details["chart_update_ms"] = spread(took)


def measure_sweep(outcome: Outcome, visitor: Visitor, server: Server) -> None:
    """A page of many trials, written at once as production leaves them."""
    words = [sys.executable, "-m", "benchmarks.played_sweeps", "--trials", str(TRIALS), "--owner", "admin"]
    played = subprocess.run(
        words, cwd=ROOT, env=server.variables, capture_output=True, text=True, check=True
    ).stdout.strip()
    measure_load(outcome, visitor, "page_500", f"/sweeps/{played}")
    with visitor.context() as context:
        page, _ = _opened(context)
        page.goto(f"{visitor.url}/sweeps/{played}")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1_500)
        took = page.evaluate(BRUSH, BRUSHES)[1:]
    outcome.figures["brush_ms"], outcome.details["brush_ms"] = median(took), spread(took)


def measure_cli(outcome: Outcome) -> None:
    took = []
    for _ in range(CLI_ROUNDS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", CLI, "--help"], cwd=ROOT, capture_output=True, check=True)
        took.append((time.perf_counter() - began) * 1000)
    outcome.figures["cli_start_ms"], outcome.details["cli_start_ms"] = median(took), spread(took)


def measure_rules(outcome: Outcome, visitor: Visitor, addresses: list[str]) -> None:
    broken: list[str] = []
    foreign: list[str] = []
    policy = 0
    with visitor.context() as context:
        context.on(
            "request", lambda seen: None if _is_own(seen.url, visitor.url) else foreign.append(seen.url)
        )
        page, _ = _opened(context)
        for address in addresses:
            page.goto(visitor.url + address)
            page.wait_for_timeout(1_000)
            for look, (media, width) in LOOKS.items():
                broken += [f"{look} {address}: {each}" for each in _broken_rules(page, media, width)]
            policy += int(page.evaluate("seen.policy"))
    outcome.figures |= {
        "axe_violations": len(broken),
        "foreign_requests": len(foreign),
        "csp_violations": policy,
    }
    outcome.details |= {"axe": broken, "foreign": foreign, "pages": len(addresses)}


def _broken_rules(page: Page, media: dict[str, Any], width: int) -> list[str]:
    """What an open page breaks in this look, once its charts have followed."""
    page.emulate_media(**PLAIN | media)
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(REDRAWN_MS)
    return [each["id"] for each in Axe().run(page, options=RULES).response["violations"]]


def measure_layout(outcome: Outcome, visitor: Visitor, addresses: list[str]) -> None:
    """How far pages jump while they come to stand, and which scroll sideways; a page is resized in place."""
    shifts: dict[str, float] = {}
    too_wide: dict[str, list[int]] = {}
    with visitor.context() as context:
        page, _ = _opened(context)
        for address in addresses:
            for width in SHIFT_WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(visitor.url + address)
                page.wait_for_timeout(SHIFTS_MS)
                shifts[f"{address} at {width}"] = float(page.evaluate("seen.shift"))
            if wide := [width for width in WIDTHS if _overflows(page, width)]:
                too_wide[address] = wide
    outcome.figures |= {"cls_max": max(shifts.values()), "overflow_pages": len(too_wide)}
    worst = sorted(shifts, key=lambda place: -shifts[place])[:5]
    outcome.details |= {"cls": {place: round(shifts[place], 3) for place in worst}, "overflow": too_wide}


def _overflows(page: Page, width: int) -> bool:
    page.set_viewport_size({"width": width, "height": 900})
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def _is_own(address: str, url: str) -> bool:
    return address.startswith((url, "data:", "blob:"))


def _opened(context: BrowserContext) -> tuple[Page, list[float]]:
    """A page that watches itself, and the sizes of what it received."""
    context.add_init_script(OBSERVE)
    page = context.new_page()
    received: list[float] = []
    wire = context.new_cdp_session(page)
    wire.send("Network.enable")
    wire.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    return page, received
