"""Every page full of data at every width: nothing scrolls sideways, no text lies on other text, nothing jumps.

A page is loaded where it could jump; for the other widths its window is resized in place. A window at 200 % zoom lays
out as one of half its width, so the widths from 320 on are also those of windows from 640 px on at 200 %.
"""

from collections.abc import Iterable
from functools import partial
from weakref import WeakKeyDictionary

import pytest
from playwright.sync_api import CDPSession, Page

from tests.dashboard.conftest import settle
from tests.dashboard.full_lab import FullLab, Makers, fill_lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
WIDTHS = range(320, 1601, 40)
LOADED_WIDTHS = (390, 768, 1024, 1440)
# Pages whose scripts draw or write something above other things: loaded at each of these widths, others at one.
MOVING = (
    "/",
    "/jobs",
    "/jobs/{running}",
    "/jobs/{failed}",
    "/compare?jobs={running},{failed}",
    "/datasets",
    "/usage",
    "/account",
)
MOST_SHIFT = 0.05
ADDRESSES = (
    "/",
    "/?line=2 h, memory",
    "/queue",
    "/jobs",
    "/jobs?group=state",
    "/jobs/{running}",
    "/jobs/{failed}",
    "/compare?jobs={running},{failed}",
    "/submit",
    "/datasets",
    "/models",
    "/models/root/digits@3",
    "/models/root/digits-int8",
    "/services/answers",
    "/services/answers/change",
    "/services/broken",
    "/services",
    "/new-service",
    "/federated",
    "/sessions",
    "/environments",
    "/pools",
    "/bookings",
    "/projects",
    "/share",
    "/usage",
    "/usage/what-if",
    "/benchmarks",
    "/audit",
    "/keys",
    "/notices",
    "/account",
    "/account/second-factor",
    "/people",
    "/people/of/ada",
    "/devices/{device}",
    "/jobs/{running}/file?path=" + "long" * 20 + ".csv",
)
# What leaves the page, a badge of the top bar that is cut, and pairs of texts that lie on each other by more than 2 px
# both ways.  A text counts where it can be seen: within every ancestor that clips it.  What floats above the page (bars, toasts) is meant to cover it.
LOOK = """
() => {
  const root = document.documentElement;
  const faults = [];
  if (root.scrollWidth > innerWidth) {
    const wide = [...document.body.querySelectorAll("*")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
    const deepest = wide.filter((one) => !wide.some((other) => other !== one && one.contains(other)));
    const names = deepest.slice(0, 3).map((one) => `${one.tagName}.${one.className} in ${one.parentElement.className}`);
    faults.push(`${root.scrollWidth - innerWidth} px too wide: ${names.join("; ")}`);
  }
  for (const one of document.querySelectorAll(".top > .badge"))
    if (one.scrollWidth > one.clientWidth) faults.push(`"${one.textContent}" is cut`);
  const clips = new Map();
  const clipOf = (element) => {
    if (!element || element === document.body) return { left: 0, top: -1e9, right: 1e9, bottom: 1e9 };
    if (clips.has(element)) return clips.get(element);
    const style = getComputedStyle(element);
    let clip = null;
    const away = style.position === "fixed" || style.position === "sticky" || style.opacity === "0";
    if (!away && style.visibility === "visible" && style.clipPath === "none") {
      clip = clipOf(element.parentElement);
      if (clip && style.overflowX !== "visible") {
        const box = element.getBoundingClientRect();
        clip = { left: Math.max(clip.left, box.left), top: Math.max(clip.top, box.top), right: Math.min(clip.right, box.right), bottom: Math.min(clip.bottom, box.bottom) };
      }
    }
    clips.set(element, clip);
    return clip;
  };
  const texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (!node.data.trim()) continue;
    const clip = node.parentElement.checkVisibility() && clipOf(node.parentElement);  // not in closed details
    if (!clip) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      const seen = { left: Math.max(box.left, clip.left), top: Math.max(box.top, clip.top), right: Math.min(box.right, clip.right), bottom: Math.min(box.bottom, clip.bottom), node };
      if (seen.right - seen.left > 2 && seen.bottom - seen.top > 2) texts.push(seen);
    }
  }
  texts.sort((one, other) => one.top - other.top);
  for (let at = 0; at < texts.length; at += 1)
    for (let next = at + 1; next < texts.length && texts[next].top < texts[at].bottom - 2; next += 1) {
      const [one, other] = [texts[at], texts[next]];
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      if (one.node !== other.node && across > 2 && down > 3)
        faults.push(`"${one.node.data.trim().slice(0, 30)}" on "${other.node.data.trim().slice(0, 30)}"`);
    }
  return [...new Set(faults)].slice(0, 4);
}
"""
# Shifts while a page is still read say how fast the machine is: a table's columns find their widths row by row.
SHIFTS = """
globalThis.shifts = [];
const isWhole = (entry) => entry.startTime > (performance.getEntriesByType("navigation")[0].domInteractive || Infinity);
new PerformanceObserver((list) => {
  for (const entry of list.getEntries())
    if (!entry.hadRecentInput && isWhole(entry)) shifts.push([entry.value, entry.sources.map((one) => one.node?.id || one.node?.className || one.node?.nodeName)]);
}).observe({ type: "layout-shift", buffered: true });
"""


@pytest.fixture
def lab(home, root, bob, make_job, make_attempt, make_device, make_pool, write_readings) -> FullLab:
    # From an hour ahead: an agent writes each second, and the band that tells when it stopped moves a page.
    fresh = partial(write_readings, age_s=-3600)
    makers = Makers(make_job, make_attempt, make_device, make_pool, fresh)
    return fill_lab(home, root, bob, makers)


_WIRES: WeakKeyDictionary[Page, CDPSession] = WeakKeyDictionary()


def resize(page: Page, width: int) -> None:
    """Lay a page out at a width; Playwright's own way takes twice the processor, for the same."""
    wire = _WIRES.get(page) or page.context.new_cdp_session(page)
    _WIRES[page] = wire
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    wire.send("Emulation.setDeviceMetricsOverride", size)
    assert page.evaluate("innerWidth") == width


def faults_of(page: Page, address: str, widths: Iterable[int]) -> list[str]:
    """What is wrong on an open page, at any of these widths."""
    found = []
    for width in widths:
        resize(page, width)
        found += [f"{address} at {width}: {each}" for each in page.evaluate(LOOK)]
    return found


def shifts_of(page: Page, address: str) -> list[str]:
    """How far a page's parts jumped while it came to stand, if that is too far."""
    shifts = page.evaluate("shifts")
    total = sum(value for value, _ in shifts)
    return [f"{address} jumps by {total:.3f}: {sorted(shifts)[-2:]}"] if total > MOST_SHIFT else []


def test_no_page_is_too_wide_lays_text_on_text_or_jumps(server, open_page, root, lab):
    page = open_page(root, "/keys")
    page.add_init_script(SHIFTS)
    faults = []

    for number, address in enumerate(ADDRESSES):
        place = address.format(running=lab.running.pk, failed=lab.failed.pk, device=lab.device)
        widths = LOADED_WIDTHS if address in MOVING else LOADED_WIDTHS[number % 4 :][:1]
        for width in widths:
            resize(page, width)
            page.goto(server.url + place)
            settle(page)  # a file that is cut off is left open by the test's server
            faults += shifts_of(page, f"{address} at {width}")
        faults += faults_of(page, address, WIDTHS)
        if address == "/jobs":
            page.locator("[data-choose]").nth(1).check()
            page.locator("#jobs tr[data-job] td[data-label=State]").first.click()
            page.locator("#peek h2").wait_for()
            faults += faults_of(page, "/jobs with a job chosen and one peeked", WIDTHS)

    assert not faults, "\n".join(faults)


def test_no_page_in_german_is_too_wide_lays_text_on_text_or_jumps(server, open_page, root, lab):
    """German words are longer, and scripts must write the same words as the server, or a page jumps."""
    page = open_page(root, "/keys")
    page.context.add_cookies([{"name": "berth_language", "value": "de", "url": server.url}])
    page.add_init_script(SHIFTS)
    faults = []

    for number, address in enumerate(ADDRESSES):
        place = address.format(running=lab.running.pk, failed=lab.failed.pk, device=lab.device)
        resize(page, LOADED_WIDTHS[number % 4])
        page.goto(server.url + place)
        settle(page)
        faults += shifts_of(page, f"{address} at {LOADED_WIDTHS[number % 4]}")
        faults += faults_of(page, address, (320, *LOADED_WIDTHS))

    assert not faults, "\n".join(faults)


def test_the_check_sees_text_on_text_and_what_is_too_wide(open_page, root):
    page = open_page(root, "/keys")
    assert page.evaluate(LOOK) == []

    page.evaluate(
        """() => {
          const title = document.querySelector("h1").getBoundingClientRect();
          document.querySelector("main").insertAdjacentHTML("beforeend", "<p>lies on the title</p><div class=wide>wide</div>");
          document.querySelector(".top").insertAdjacentHTML("beforeend", "<b class=badge>simulated</b>");
          document.querySelector(".top > b").style.width = "20px";
          const [over, wide] = document.querySelectorAll("main > p, main > .wide");
          Object.assign(over.style, { position: "absolute", top: `${title.top}px`, left: `${title.left}px` });
          wide.style.width = "3000px";
        }"""
    )

    faults = page.evaluate(LOOK)
    assert any("px too wide: DIV.wide" in fault for fault in faults)
    assert '"simulated" is cut' in faults
    assert any('"lies on the title"' in fault and '"Keys"' in fault for fault in faults)
