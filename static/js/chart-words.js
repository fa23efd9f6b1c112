// A chart in words and in numbers: one sentence for those who do not see it, the values under the cursor.
import { smoothed } from "./chart-data.js";
import { make, say, write } from "./dom.js";
import { clock, duration, value } from "./words.js";

const TREND_SHARE = 0.1; // of what is shown, at its end
const STEADY_PERCENT = 0.5;
const MOST_EVENTS = 5; // said, the newest

// Where the newest attempt is: what earlier ones left beyond it does not count.
function newest({ x, tail }) {
  const found = tail === undefined || tail === null ? -1 : x.findIndex((at) => at >= tail);
  return (found < 0 ? x.length : found) - 1;
}

// The point that was recorded last, as {x, y, nonfinite}: never a bucket's mean where the server tells the point.
export function lastOf(data) {
  if (data.last) return data.last;
  if (data.latest !== undefined) return { x: data.x[newest(data)], y: data.latest };
  for (let at = newest(data); at >= 0; at -= 1) if (data.y[at] !== null) return { x: data.x[at], y: data.y[at] };
  return null;
}

const NOT_FINITE = { nan: "NaN", inf: "inf", "-inf": "-inf" }; // by what the API calls them

export function numberWords(chart, { y, nonfinite }) {
  return y === null || y === undefined ? (NOT_FINITE[nonfinite] ?? say("no number")) : `${chart.format(y)}${chart.unit}`;
}

// What the first point of a bucket was that has no finite one.
function oddIn(data, at) {
  const end = data.x[at + 1] ?? Infinity;
  return data.nonfinite?.find(([x]) => x >= data.x[at] && x < end)?.[1];
}

let counted = "step"; // what x counts, as the server names it: a key of COUNTED
const COUNTED = {
  step: say("{n} steps"),
  sample: say("{n} samples"),
  epoch: say("{n} epochs"),
  percent: "{n} %",
};

export function countIn(unit) {
  counted = unit || "step";
}

export function placeName(kind) {
  return { step: say(counted), time: say("time"), relative: say("minutes since its start") }[kind];
}

export function placeWords(kind, x) {
  if (kind === "step") return `${say(counted)} ${value(x)}`;
  if (kind === "relative") return say("after {time}", { time: duration(x * 60) });
  return clock(x, true);
}

// "2.31 at step 72,310, falling 4 % in the last 7,200 steps, lowest 2.29."
export function sentence(chart, data, notes) {
  const last = lastOf(data);
  const broken = brokenWords(chart.xKind, data);
  if (last === null) return broken ? say("No number yet; {broken}.", { broken }) : say("No number yet.");
  const lowest = [...(data.y_min ?? data.y), last.y].reduce((low, y) => (y !== null && y < low ? y : low), Infinity);
  const ending = [
    say("{number} at {place}", { number: numberWords(chart, last), place: placeWords(chart.xKind, last.x) }),
    last.y !== null && trend(chart.xKind, data),
    Number.isFinite(lowest) && say("lowest {number}", { number: numberWords(chart, { y: lowest }) }),
  ];
  const parts = [ending.filter(Boolean).join(", ")];
  if (data.bucket > 1 && data.total > data.x.length)
    parts.push(say("{points} points shown as {buckets} buckets", { points: data.total, buckets: data.x.length }));
  if (broken) parts.push(broken);
  parts.push(...chart.findings);
  for (const { attempt, note, x } of chart.marks) {
    const place = (attempt || note) && placeWords(chart.xKind, x);
    if (attempt) parts.push(say("attempt {attempt} from {place}", { attempt, place }));
    else if (note) parts.push(say("note of {note} at {place}", { note, place }));
  }
  const events = chart.marks.filter(({ event }) => event);
  for (const { event, x } of events.slice(-MOST_EVENTS))
    parts.push(say("{event} at {place}", { event, place: placeWords(chart.xKind, x) }));
  if (events.length > MOST_EVENTS) parts.push(say("{n} earlier marks", { n: events.length - MOST_EVENTS }));
  const text = [...parts, ...notes].join("; ");
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function brokenWords(kind, data) {
  const first = data.nonfinite?.[0];
  if (!first) return "";
  const count = Math.max(data.nonfinite.length, data.total - data.n.reduce((sum, n) => sum + n, 0));
  return say("{n} not a number, first at {place}", { n: count, place: placeWords(kind, first[0]) });
}

function trend(kind, data) {
  const { x, y } = data;
  const end = newest(data);
  const from = x.findIndex((at) => at >= x[end] - (x[end] - x[0]) * TREND_SHARE);
  if (end < 4 || from < 0 || from >= end || y[from] === null || y[end] === null || !y[from]) return "";
  const percent = ((y[end] - y[from]) / Math.abs(y[from])) * 100;
  if (Math.abs(percent) > 1000) return "";
  const span =
    kind === "step"
      ? say(COUNTED[counted], { n: value(x[end] - x[from]) })
      : duration((x[end] - x[from]) * (kind === "relative" ? 60 : 1));
  if (Math.abs(percent) < STEADY_PERCENT) return say("steady over the last {span}", { span });
  const change = { percent: Math.abs(percent).toFixed(Math.abs(percent) < 10 ? 1 : 0), span };
  return percent < 0
    ? say("falling {percent} % in the last {span}", change)
    : say("rising {percent} % in the last {span}", change);
}

// The place of the point nearest to x; steps may go back, so all are looked at.
export function nearest(data, x) {
  let [best, least] = [-1, Infinity];
  for (let at = 0; at < data.x.length; at += 1) {
    const far = Math.abs(data.x[at] - x);
    if (far <= least) [best, least] = [at, far];
  }
  return best;
}

// Values under the cursor, or the last ones; a row for each series.
export class Readout {
  #rows = [];
  #labels = "";

  constructor(title) {
    this.table = make("table", { className: "chart-values" });
    this.table.createCaption().className = "unseen";
    this.table.caption.textContent = say("{name} at the cursor", { name: title });
    const head = this.table.createTHead().insertRow();
    this.place = head.appendChild(heading("", "col"));
    [this.what, , this.range] = [say("last"), say("smoothed"), ""].map((text) => head.appendChild(heading(text, "col")));
    this.body = this.table.createTBody();
  }

  get isEmpty() {
    return !this.#rows.length;
  }

  show(chart, series, cursor) {
    const wanted = series.filter(({ data }) => data.x.length);
    this.table.hidden = !wanted.length;
    if (!wanted.length) return;
    this.table.classList.toggle("is-smoothed", chart.smooth > 0);
    const x = cursor ?? Math.max(...wanted.map(({ data }) => lastOf(data)?.x ?? data.x.at(-1)));
    write(this.place, placeWords(chart.xKind, x));
    write(
      this.what,
      cursor === null ? say("last") : wanted.some(({ data }) => data.total > data.x.length) ? say("mean") : say("value"),
    );
    const labels = wanted.map(({ label, colour }) => `${label} ${colour}`).join("\n");
    write(this.range, cursor === null ? "" : say("min to max"));
    if (this.#labels !== labels) this.#build(wanted);
    this.#labels = labels;
    wanted.forEach(({ data }, row) =>
      cursor === null ? this.#fillLast(chart, row, data) : this.#fill(chart, row, data, nearest(data, x)),
    );
  }

  #build(series) {
    this.body.replaceChildren();
    this.#rows = series.map(({ label, colour, isDashed }) => {
      const row = this.body.insertRow();
      row.append(heading("", "row", swatch(colour, isDashed), label));
      return [0, 1, 2].map(() => row.insertCell());
    });
  }

  // Without a cursor the table says what the head of the chart says.
  #fillLast(chart, row, data) {
    const [raw, smooth, range] = this.#rows[row];
    const last = lastOf(data);
    write(raw, last ? numberWords(chart, last) : say("no number"));
    write(smooth, chart.smooth ? numberWords(chart, { y: smoothed(data, chart.smooth)[newest(data)] ?? null }) : "");
    write(range, "");
  }

  #fill(chart, row, data, at) {
    const [raw, smooth, range] = this.#rows[row];
    const number = (y) => numberWords(chart, { y, nonfinite: oddIn(data, at) });
    write(raw, number(data.y[at]));
    write(smooth, chart.smooth ? number(smoothed(data, chart.smooth)[at]) : "");
    const isOne = !data.y_min || data.y[at] === null || data.y_min[at] === data.y_max[at];
    write(range, isOne ? "" : say("{from} to {to}", { from: number(data.y_min[at]), to: number(data.y_max[at]) }));
  }
}

export function swatch(colour, isDashed = false) {
  return make("i", { className: `swatch colour-${colour.split("-")[1]}${isDashed ? " is-dashed" : ""}` });
}

function heading(text, scope, ...parts) {
  return make("th", { textContent: text, scope }, ...parts);
}
