"""A job's page under a flood: a million lines, a million points, and a connection that is lost all the time."""

import time
from typing import Any

from playwright.sync_api import Page

from benchmarks.browsing import Visitor, submit
from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.server import Client, Server
from benchmarks.stats import median, spread

FIGURES = (
    Figure("log_open_ms", "ms", "a log of 1e6 lines: from choosing it to its last lines, median", target=300),
    Figure(
        "log_jump_ms", "ms", "the page is told of a jump to anywhere, to its lines; not cached", target=20
    ),
    Figure("log_jump_frame_ms", "ms", "the same, from the jump to the frame that shows them"),
    Figure("log_search_ms", "ms", "a text in all of it, to the line shown, median", target=300),
    Figure("lost", "", "of 1e5 points and 1e5 lines, socket killed 200 times: missing in the page", target=0),
    Figure("doubled", "", "the same: held twice", target=0),
    Figure("spikes_seen", "of 20", "planted in 1e6 points, drawn by the chart", target=20, at_least=True),
)
SCRIPT = ROOT / "benchmarks" / "scripts" / "flood.py"
MANY_LINES = MANY_POINTS = 1_000_000
POINTS = LINES = 100_000
FLOOD_S = 90
KILLS = 200
SPIKES = 20
FIRST_SPIKE = 1_000.0  # scripts/flood.py plants each one higher than the one before
ROUNDS = 9
SETTLE_S = 240.0
MODULE = """name => performance.getEntriesByType("resource").map(one => one.name).find(one => one.includes(`/${name}.`))"""
# The newest socket of the page, so that it can be killed like a lost connection.
KEEP_SOCKET = """
globalThis.Socket = WebSocket;
globalThis.WebSocket = class extends Socket { constructor(...given) { super(...given); globalThis.newest = this; } };
"""
OPEN_LOG = """() => new Promise(done => {
  const log = document.getElementById("log");
  const began = performance.now();
  document.getElementById("log-attempt").dispatchEvent(new Event("change"));
  log.querySelector(".log-window").replaceChildren();
  const look = () => ([...log.querySelectorAll(".line")].at(-1)?.textContent.includes("the needle") ? done(performance.now() - began) : requestAnimationFrame(look));
  look();
})"""
# From the event that tells the page of the jump to the lines in it, and from the jump to the frame that shows them.
JUMP = """place => new Promise(done => {
  const log = document.getElementById("log");
  const began = performance.now();
  let told = null;
  log.addEventListener("scroll", () => { told ??= performance.now(); }, { once: true, capture: true });
  log.scrollTop = log.scrollHeight * place;
  const watcher = new MutationObserver(() => {
    if (told === null) return;
    const box = log.getBoundingClientRect();
    const seen = [...log.querySelectorAll(".line")].filter(one => { const at = one.getBoundingClientRect(); return at.bottom > box.top && at.top < box.bottom; });
    if (seen.length < 4 || !seen.every(one => one.textContent.includes("line "))) return;
    watcher.disconnect();
    const there = performance.now();
    requestAnimationFrame(() => setTimeout(() => done([there - told, performance.now() - began])));
  });
  watcher.observe(log, { childList: true, subtree: true });
})"""
SEARCH = """text => new Promise(done => {
  const field = document.getElementById("log-search");
  field.value = "";
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  field.value = text;
  const began = performance.now();
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  const look = () => (document.querySelector("#log .is-current")?.textContent.includes(text) ? done(performance.now() - began) : requestAnimationFrame(look));
  look();
})"""
# Takes each new line once, as the viewer holds it, right before every kill.
COLLECT = """async address => {
  const { RankLines } = await import(address);
  const get = RankLines.prototype.get;
  const textAt = (viewer, number) => get.call(viewer, number)?.text ?? null;
  RankLines.prototype.get = function (number) { globalThis.held.viewer = this; return get.call(this, number); };
  globalThis.held = { viewer: null, lines: [] };
  globalThis.takeLines = () => {
    const { viewer, lines } = globalThis.held;
    if (!viewer) return 0;
    for (let at = 0; at < viewer.total; at += 1) lines[at] ??= at < viewer.total - 3000 ? null : textAt(viewer, at);
    return viewer.total;
  };
  globalThis.readHoles = async () => {
    const { viewer, lines } = globalThis.held;
    for (let at = 0; at < lines.length; at += 1) {
      for (let turn = 0; lines[at] === null && turn < 200; turn += 1) {
        lines[at] = textAt(viewer, at);
        if (lines[at] === null) await new Promise(done => setTimeout(done, 20));
      }
    }
    return lines;
  };
}"""
KILL = """() => {
  takeLines();
  if (globalThis.newest?.readyState !== 1) return false;
  newest.close();
  dispatchEvent(new Event("online"));
  return true;
}"""
DRAWN_VALUES = """async address => {
  const { charts } = await import(address);
  return [...charts].find(one => one.title === "flood").drawn.data.flatMap(one => [...one.y]);
}"""
HELD_POINTS = """async address => {
  const { charts } = await import(address);
  const chart = [...charts].find(one => one.title === "flood");
  const { x, y, n, total } = chart.series[0].data;
  return { x, y, n, total };
}"""


def flood(client: Client, name: str, **given: float) -> str:
    """A job that writes ``points`` and ``lines`` over ``seconds``."""
    args = [text for key, value in given.items() for text in (f"--{key}", str(value))]
    return submit(client, name, *args, source={"text": SCRIPT.read_text()}, total_steps=None)


def wait_for(what: str, holds: Any, within_s: float = SETTLE_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come in {within_s:.0f} s.")
        time.sleep(0.5)


def measure_floods(outcome: Outcome, visitor: Visitor, server: Server) -> None:
    client = server.client()
    many = flood(client, "many", points=MANY_POINTS, lines=MANY_LINES, spikes=SPIKES)
    wait_for("A million lines", lambda: _count_lines(client, many) > MANY_LINES)
    wait_for("A million points", lambda: _points(client, many)["total"] == MANY_POINTS)
    with visitor.context() as context:
        page = context.new_page()
        page.goto(f"{visitor.url}/jobs/{many}")
        _measure_log(outcome, page)
        _count_spikes(outcome, page)
    client.post(f"/jobs/{many}/cancel", {})
    _kill_sockets(outcome, visitor, client)


def _count_lines(client: Client, job: str) -> int:
    return int(client.get(f"/jobs/{job}/logs/lines?count=1")["total"])


def _points(client: Client, job: str) -> dict[str, Any]:
    found = client.get(f"/jobs/{job}/metrics?names=flood")["series"]
    points: dict[str, Any] = found.get("flood", {"total": 0})
    return points


def _measure_log(outcome: Outcome, page: Page) -> None:
    page.locator("#log .line", has_text="the needle").wait_for(timeout=60_000)
    page.wait_for_timeout(3_000)
    opens = [page.evaluate(OPEN_LOG) for _ in range(ROUNDS)]  # first, while the end is followed
    jumps: list[tuple[float, float]] = [
        page.evaluate(JUMP, (number + 0.5) / ROUNDS) for number in range(ROUNDS)
    ]
    took = {
        "log_open_ms": opens,
        "log_jump_ms": [there for there, _ in jumps],
        "log_jump_frame_ms": [shown for _, shown in jumps],
        "log_search_ms": [
            page.evaluate(SEARCH, f"line {number * MANY_LINES // 11 + 4_321}") for number in range(ROUNDS)
        ],
    }
    for name, values in took.items():
        outcome.figures[name], outcome.details[name] = median(values), spread(values)


def _count_spikes(outcome: Outcome, page: Page) -> None:
    figure = page.locator("#charts figure", has=page.get_by_text("flood", exact=True))
    figure.scroll_into_view_if_needed()
    figure.locator(".chart-svg path").first.wait_for(state="attached", timeout=60_000)
    drawn = page.evaluate(DRAWN_VALUES, page.evaluate(MODULE, "charts"))
    outcome.figures["spikes_seen"] = len({y for y in drawn if y is not None and y >= FIRST_SPIKE})
    outcome.details["charts"] = page.locator("#charts figcaption b").all_text_contents()


def _kill_sockets(outcome: Outcome, visitor: Visitor, client: Client) -> None:
    job = flood(client, "flood", points=POINTS, lines=LINES, seconds=FLOOD_S)
    wait_for("The first point", lambda: _points(client, job)["total"] > 0)
    with visitor.context() as context:
        context.add_init_script(KEEP_SOCKET)
        page = context.new_page()
        page.goto(f"{visitor.url}/jobs/{job}")
        page.locator("#charts .chart-svg path").first.wait_for(state="attached", timeout=60_000)
        page.evaluate(COLLECT, page.evaluate(MODULE, "log-lines"))
        kills, deadline = 0, time.monotonic() + SETTLE_S + FLOOD_S
        while kills < KILLS and time.monotonic() < deadline:
            kills += bool(page.evaluate(KILL))
            page.wait_for_timeout(FLOOD_S * 1000 // KILLS // 2 + kills * 37 % 200)
        wait_for("All points", lambda: _points(client, job)["total"] == POINTS)
        wait_for("All lines", lambda: _count_lines(client, job) == LINES)
        page.wait_for_timeout(5_000)
        page.evaluate("takeLines()")
        lines = page.evaluate("readHoles()")
        points = page.evaluate(HELD_POINTS, page.evaluate(MODULE, "charts"))
    client.post(f"/jobs/{job}/cancel", {})
    missing_lines, more_lines = compare_lines(lines)
    missing, more = compare_points(points, _points(client, job))
    outcome.figures["lost"], outcome.figures["doubled"] = missing_lines + missing, more_lines + more
    outcome.details["flood"] = {
        "kills": kills,
        "lines": {"lost": missing_lines, "doubled": more_lines},
        "points": {"lost": missing, "doubled": more},
    }


def compare_lines(held: list[str | None]) -> tuple[int, int]:
    """How many of the lines are not in their place, and how many there are too many."""
    lost = sum(number >= len(held) or held[number] != f"line {number}" for number in range(LINES))
    return lost, max(0, len(held) - LINES)


def compare_points(held: dict[str, Any], told: dict[str, Any]) -> tuple[float, float]:
    """Points missing and points too many, bucket by bucket of what REST tells; the value of a point is its step."""
    lost = doubled = 0.0
    ends = [*told["x"][1:], float("inf")]
    for start, end, count, mean in zip(told["x"], ends, told["n"], told["y"], strict=True):
        inside = [at for at, x in enumerate(held["x"]) if start <= x < end]
        found = sum(held["n"][at] for at in inside)
        lost, doubled = lost + max(0, count - found), doubled + max(0, found - count)
        summed = sum(held["n"][at] * held["y"][at] for at in inside)
        if found == count and abs(summed - mean * count) > 0.5:
            lost, doubled = lost + 1, doubled + 1
    return lost, doubled
