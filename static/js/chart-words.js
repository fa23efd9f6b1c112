// A chart in words and in numbers: one sentence for those who do not see it, the values under the cursor.
import { smoothed } from "./chart-data.js";
import { make, write } from "./dom.js";
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
  return y === null || y === undefined ? (NOT_FINITE[nonfinite] ?? "no number") : `${chart.format(y)}${chart.unit}`;
}

// What the first point of a bucket was that has no finite one.
function oddIn(data, at) {
  const end = data.x[at + 1] ?? Infinity;
  return data.nonfinite?.find(([x]) => x >= data.x[at] && x < end)?.[1];
}

let counted = "step"; // what x counts: steps, samples or epochs

export function countIn(unit) {
  counted = unit || "step";
}

export function placeName(kind) {
  return { step: counted, time: "time", relative: "minutes since its start" }[kind];
}

export function placeWords(kind, x) {
  if (kind === "step") return `${counted} ${value(x)}`;
  if (kind === "relative") return `after ${duration(x * 60)}`;
  return clock(x, true);
}

// "2.31 at step 72,310, falling 4 % in the last 7,200 steps, lowest 2.29."
export function sentence(chart, data, notes) {
  const last = lastOf(data);
  const broken = brokenWords(chart.xKind, data);
  if (last === null) return broken ? `No number yet; ${broken}.` : "No number yet.";
  const lowest = [...(data.y_min ?? data.y), last.y].reduce((low, y) => (y !== null && y < low ? y : low), Infinity);
  const least = Number.isFinite(lowest) ? `, lowest ${numberWords(chart, { y: lowest })}` : "";
  const parts = [
    `${numberWords(chart, last)} at ${placeWords(chart.xKind, last.x)}${last.y === null ? "" : trend(chart.xKind, data)}${least}`,
  ];
  if (data.bucket > 1 && data.total > data.x.length)
    parts.push(`${value(data.total)} points shown as ${value(data.x.length)} buckets`);
  if (broken) parts.push(broken);
  parts.push(...chart.findings);
  for (const { attempt, note, x } of chart.marks)
    if (attempt || note) {
      const what = attempt ? `attempt ${attempt} from` : `note of ${note} at`;
      parts.push(`${what} ${placeWords(chart.xKind, x)}`);
    }
  const events = chart.marks.filter(({ event }) => event);
  for (const { event, x } of events.slice(-MOST_EVENTS)) parts.push(`${event} at ${placeWords(chart.xKind, x)}`);
  if (events.length > MOST_EVENTS) parts.push(`${value(events.length - MOST_EVENTS)} earlier marks`);
  const text = [...parts, ...notes].join("; ");
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function brokenWords(kind, data) {
  const first = data.nonfinite?.[0];
  if (!first) return "";
  const count = Math.max(data.nonfinite.length, data.total - data.n.reduce((sum, n) => sum + n, 0));
  return `${value(count)} not a number, first at ${placeWords(kind, first[0])}`;
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
      ? `${value(x[end] - x[from])} ${counted}s`
      : duration((x[end] - x[from]) * (kind === "relative" ? 60 : 1));
  if (Math.abs(percent) < STEADY_PERCENT) return `, steady over the last ${span}`;
  return `, ${percent < 0 ? "falling" : "rising"} ${Math.abs(percent).toFixed(Math.abs(percent) < 10 ? 1 : 0)} % in the last ${span}`;
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
    this.table.caption.textContent = `${title} at the cursor`;
    const head = this.table.createTHead().insertRow();
    this.place = head.appendChild(heading("", "col"));
    [this.what, , this.range] = ["last", "smoothed", ""].map((text) => head.appendChild(heading(text, "col")));
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
      cursor === null ? "last" : wanted.some(({ data }) => data.total > data.x.length) ? "mean" : "value",
    );
    const labels = wanted.map(({ label, colour }) => `${label} ${colour}`).join("\n");
    write(this.range, cursor === null ? "" : "min to max");
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
    write(raw, last ? numberWords(chart, last) : "no number");
    write(smooth, chart.smooth ? numberWords(chart, { y: smoothed(data, chart.smooth)[newest(data)] ?? null }) : "");
    write(range, "");
  }

  #fill(chart, row, data, at) {
    const [raw, smooth, range] = this.#rows[row];
    const number = (y) => numberWords(chart, { y, nonfinite: oddIn(data, at) });
    write(raw, number(data.y[at]));
    write(smooth, chart.smooth ? number(smoothed(data, chart.smooth)[at]) : "");
    const isOne = !data.y_min || data.y[at] === null || data.y_min[at] === data.y_max[at];
    write(range, isOne ? "" : `${number(data.y_min[at])} to ${number(data.y_max[at])}`);
  }
}

export function swatch(colour, isDashed = false) {
  return make("i", { className: `swatch colour-${colour.split("-")[1]}${isDashed ? " is-dashed" : ""}` });
}

function heading(text, scope, ...parts) {
  return make("th", { textContent: text, scope }, ...parts);
}
