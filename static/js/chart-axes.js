// Axes of a drawing: what part of the numbers they show, where their ticks are, and how those read.
// Ranges of logarithmic axes are powers of ten, times are milliseconds that read as the reader's clock.
import { locale } from "./dom.js";

const ROOM = 0.05; // beyond what is drawn, above and below
const [SECOND, MINUTE, HOUR, DAY] = [1000, 60_000, 3_600_000, 86_400_000];
const TIMES = [1, 2, 5, 10, 15, 30].flatMap((many) => [many * SECOND, many * MINUTE]).concat(
  [1, 2, 3, 6, 12].map((many) => many * HOUR),
  [1, 2, 4, 7, 14, 28, 91, 365].map((many) => many * DAY),
).sort((one, two) => one - two);
const LARGE = 1e6; // read "2M"
const SMALL = 1e-4; // and below read "3e-5"

// From place to pixel and back, and {at, text} for each tick.
export class Axis {
  constructor(layout, range, most) {
    [this.from, this.to] = range[0] < range[1] ? range : [range[0] - 1, range[0] + 1];
    this.isLog = layout.type === "log";
    this.ticks = ticksOf(layout, this.from, this.to, most);
  }

  get range() {
    return [this.from, this.to];
  }

  lay(start, length) {
    Object.assign(this, { start, length });
    return this;
  }

  // In pixels from the axis's start.
  place(value) {
    const at = this.isLog ? Math.log10(value) : value;
    return ((at - this.from) / (this.to - this.from)) * this.length;
  }

  value(place) {
    return this.from + (place / this.length) * (this.to - this.from);
  }
}

// What an axis shows of these values; layout.range where somebody chose it.
export function rangeOf(layout, values, { hasRoom = false } = {}) {
  if (layout.range && layout.autorange !== true) return layout.range;
  let [least, most] = [Infinity, -Infinity];
  const isLog = layout.type === "log";
  for (const list of values)
    for (const value of list) {
      if (value === null || (isLog && value <= 0)) continue;
      if (value < least) least = value;
      if (value > most) most = value;
    }
  if (least > most) return [0, 1];
  if (isLog) [least, most] = [Math.log10(least), Math.log10(most)];
  if (least === most) return [least - 1, most + 1];
  const room = hasRoom ? (most - least) * ROOM : 0;
  if (layout.rangemode === "tozero") return [Math.min(0, least && least - room), Math.max(0, most + room)];
  return [least - room, most + room];
}

function ticksOf(layout, from, to, most) {
  if (layout.tickmode === "array")
    return layout.tickvals
      .map((at, index) => ({ at, text: layout.ticktext[index] }))
      .filter(({ at }) => at >= from && at <= to);
  if (layout.type === "date") return timeTicks(from, to, most);
  if (layout.type === "log") return powers(from, to, most);
  const step = niceStep(to - from, most);
  return every(step, from, to).map((at) => ({ at, text: tickWords(at, step) + (layout.ticksuffix ?? "") }));
}

function every(step, from, to) {
  const first = Math.ceil(from / step - 1e-9);
  const count = Math.min(100, Math.floor(to / step + 1e-9) - first + 1);
  return Array.from({ length: Math.max(0, count) }, (_, index) => (first + index) * step);
}

function niceStep(length, most) {
  const rough = length / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((times) => times * power >= rough) ?? 10);
}

// Whole powers of ten; between few of them their doubles and fives, and within one plain steps.
function powers(from, to, most) {
  const tick = (value) => ({ at: value, text: tickWords(value, value) });
  if (to - from < 0.7) {
    const [low, high] = [10 ** from, 10 ** to];
    const step = niceStep(high - low, most);
    return every(step, low, high).filter((at) => at > 0).map((at) => ({ at, text: tickWords(at, step) }));
  }
  const skip = Math.ceil((to - from) / most);
  const whole = every(skip, from, to);
  if (to - from > 2.5) return whole.map((power) => tick(10 ** power));
  const all = every(1, Math.floor(from), to).flatMap((power) => [1, 2, 5].map((times) => times * 10 ** power));
  return all.filter((value) => Math.log10(value) >= from && Math.log10(value) <= to).map(tick);
}

function timeTicks(from, to, most) {
  const step = TIMES.find((each) => (to - from) / each <= most) ?? niceStep((to - from) / DAY, most) * DAY;
  let day = "";
  return every(step, from, to).map((at) => {
    const moment = new Date(at).toISOString();
    const date = new Date(at).toLocaleDateString(locale, { month: "short", day: "numeric", timeZone: "UTC" });
    const clock = moment.slice(11, step < MINUTE ? 19 : 16);
    const isNew = date !== day && (day !== "" || step >= HOUR);
    day = date;
    return { at, text: step >= DAY || (isNew && clock.startsWith("00:00")) ? date : clock };
  });
}

export function tickWords(value, step) {
  const size = Math.abs(value);
  if (size < step / 1e6) return "0";
  if (size >= LARGE) {
    const [unit, name] = [[1e12, "T"], [1e9, "B"], [1e6, "M"]].find(([least]) => size >= least);
    return size >= 1e15 ? shortest(value.toExponential(2)) : `${Number((value / unit).toPrecision(6))}${name}`;
  }
  if (size < SMALL) return shortest(value.toExponential(2));
  const digits = Math.max(0, Math.min(8, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const shortest = (text) => text.replace(/\.?0+e/, "e").replace("e+", "e");
