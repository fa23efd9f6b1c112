// Who held which device, and who is expected to: a row for each device, a bar for each job on it.
import { onRefresh } from "./rows.js";
import { clock, duration, serverNow } from "./words.js";

const HOUR_S = 3600;
// How far back and ahead each choice looks.
const RANGES = { "2 h": [2, 2], "12 h": [12, 6], "24 h": [24, 12], "7 d": [168, 24] };
const EVERY_MS = 30000;
const MOST_BARS = 300;
const LEAST_SHARE = 0.001; // of the width; what is narrower shows nothing
const me = document.documentElement.dataset.user;
const isStaff = "staff" in document.documentElement.dataset;

let range = new URL(location.href).searchParams.get("line") ?? "2 h";
let timer = 0;
let shown = "";

export function watchTimeline() {
  if (!(range in RANGES)) range = "2 h";
  document.getElementById("timeline-ranges").addEventListener("click", (event) => choose(event.target.dataset.range));
  document.addEventListener("visibilitychange", () => !document.hidden && read());
  onRefresh(read);
  press();
  (globalThis.requestIdleCallback ?? setTimeout)(range === "2 h" ? showFirst : read);
}

// What came with the page.
function showFirst() {
  const first = JSON.parse(document.getElementById("timeline-first").textContent);
  draw(first, windowOf(Date.parse(first.now) / 1000), Date.parse(first.now) / 1000);
  timer = setTimeout(read, EVERY_MS);
}

function windowOf(now) {
  const [back, ahead] = RANGES[range];
  return { from: now - back * HOUR_S, to: now + ahead * HOUR_S };
}

function choose(name) {
  if (!name) return;
  range = name;
  const address = new URL(location.href);
  address.searchParams.set("line", name);
  history.replaceState(null, "", address);
  press();
  read();
}

function press() {
  for (const button of document.querySelectorAll("[data-range]")) button.setAttribute("aria-pressed", button.dataset.range === range);
}

async function read() {
  clearTimeout(timer);
  if (document.hidden) return;
  timer = setTimeout(read, EVERY_MS);
  const now = serverNow();
  const window = windowOf(now);
  const answer = await fetch(`/api/v1/timeline?from=${window.from.toFixed(0)}&to=${window.to.toFixed(0)}`).catch(() => null);
  if (answer?.ok) draw(await answer.json(), window, now);
  else note("The time line could not be read; it is tried again in half a minute.");
}

function draw({ bars, truncated, now: readAt }, window, now) {
  const place = (time) => (Math.min(window.to, Math.max(window.from, time)) - window.from) / (window.to - window.from);
  const all = merged(bars.map((bar) => ({ ...bar, from: Date.parse(bar.start) / 1000, to: bar.end ? Date.parse(bar.end) / 1000 : window.to })))
    .map((bar) => ({ ...bar, left: place(bar.from), width: place(bar.to) - place(bar.from) }))
    .filter((bar) => bar.width >= LEAST_SHARE);
  const kept = all.sort((one, two) => two.width - one.width).slice(0, MOST_BARS).sort((one, two) => one.from - two.from);
  const state = JSON.stringify([range, kept.map((bar) => [bar.device, bar.job, bar.left.toFixed(3), bar.width.toFixed(3), bar.state])]);
  if (state === shown) return;
  shown = state;
  for (const track of document.querySelectorAll("[data-lane]")) {
    const own = kept.filter((bar) => bar.device === track.dataset.lane);
    track.replaceChildren(...idleParts(own, place(now)), ...own.map(barElement), nowLine(place(now)));
  }
  drawTicks(window, place);
  const hidden = all.length - kept.length;
  note([describe(kept, Date.parse(readAt) / 1000), hidden > 0 ? `${hidden} short ones are left out.` : "", truncated ? "Older ones are left out." : ""].filter(Boolean).join(" "));
}

// Attempts of one job that follow each other on a device are one bar.
function merged(bars) {
  const found = [];
  const last = new Map();
  for (const bar of bars.sort((one, two) => one.from - two.from)) {
    const key = `${bar.device} ${bar.job} ${bar.planned}`;
    const before = last.get(key);
    if (before && bar.from - before.to < 60) before.to = Math.max(before.to, bar.to);
    else {
      last.set(key, bar);
      found.push(bar);
    }
  }
  return found;
}

function barElement(bar) {
  const mayOpen = isStaff || bar.owner === me;
  const element = document.createElement(mayOpen ? "a" : "span");
  if (mayOpen) element.href = `/jobs/${bar.job}`;
  element.className = `lane-bar${bar.planned ? " is-planned" : ""}${bar.colour === null ? "" : ` colour-${(bar.colour % 8) + 1}`}`;
  position(element, bar.left, bar.width);
  const name = document.createElement("bdi");
  name.textContent = bar.name;
  element.append(name);
  const until = bar.end ? ` to ${clock(bar.to)}` : ", end not known";
  element.title = `${bar.name} #${bar.short_id}, ${bar.owner}: ${bar.planned ? "planned " : ""}${clock(bar.from)}${until} (${duration(bar.to - bar.from)})`;
  return element;
}

// Grey for idle, in words where there is room.
function idleParts(bars, now) {
  const parts = [];
  let at = 0;
  for (const bar of [...bars.filter((one) => !one.planned), { left: now, width: 0 }]) {
    if (bar.left - at > 0.002) {
      const element = document.createElement("i");
      element.className = "lane-idle";
      position(element, at, bar.left - at);
      parts.push(element);
    }
    at = Math.max(at, bar.left + bar.width);
  }
  return parts;
}

function nowLine(at) {
  const element = document.createElement("i");
  element.className = "lane-now";
  position(element, at, 0);
  return element;
}

function position(element, left, width) {
  element.style.left = `${(left * 100).toFixed(2)}%`;
  element.style.width = `${(width * 100).toFixed(2)}%`;
}

function drawTicks(window, place) {
  const span = (window.to - window.from) / HOUR_S;
  const step = [0.5, 1, 3, 6, 24].find((hours) => span / hours <= 10) * HOUR_S;
  const shift = new Date().getTimezoneOffset() * 60;
  const ticks = [];
  for (let time = Math.ceil((window.from - shift) / step) * step + shift; time < window.to; time += step) {
    const element = document.createElement("span");
    element.textContent = step >= 24 * HOUR_S ? new Date(time * 1000).toLocaleDateString([], { weekday: "short", day: "numeric" }) : clock(time);
    element.style.left = `${(place(time) * 100).toFixed(2)}%`;
    ticks.push(element);
  }
  document.getElementById("ticks").replaceChildren(...ticks);
}

function describe(bars, now) {
  const running = new Set(bars.filter((bar) => !bar.planned && bar.to >= now - 0.01).map((bar) => bar.device));
  const planned = new Set(bars.filter((bar) => bar.planned && bar.from > now + 1).map((bar) => bar.job));
  const lanes = document.querySelectorAll("[data-lane]").length;
  return `${running.size} of ${lanes} devices are in use${planned.size ? `; ${planned.size} waiting ${planned.size === 1 ? "job has" : "jobs have"} a planned place` : ""}.`;
}

function note(text) {
  document.getElementById("timeline-note").textContent = text;
}
