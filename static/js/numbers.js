// The numbers of one job: read in buckets, the newest added, x as a view wants it; and which of many are drawn first.
import { addPoint } from "./chart-data.js";
import { button, say } from "./dom.js";

const FIRST_SHOWN = 12;

export class Numbers {
  series = new Map(); // by name; x as the server tells it: a step, or seconds since 1970
  charts = []; // names that are drawn over each other, most wanted first
  start = null; // of the first point
  isRead = false; // the server has answered: what is not there does not exist

  constructor(job) {
    this.job = job;
  }

  // kind is step, time or relative, the minutes since the first point.
  ask(kind, more = {}) {
    const query = new URLSearchParams({ x: kind === "step" ? "step" : "time", ...more });
    return fetch(`/api/v1/jobs/${this.job}/metrics?${query}`);
  }

  // What was read; without it there is nothing until the next read.
  take(answer) {
    const { series = {}, charts = [] } = answer ?? {};
    this.isRead = Boolean(answer);
    this.charts = charts;
    this.series = new Map(Object.entries(series));
    this.start = Math.min(...[...this.series.values()].map((data) => data.x[0] ?? Infinity));
  }

  // Whether something must be read again: a name that is new, or steps that an earlier attempt did.
  add(kind, frame, repeats = false) {
    let isOdd = false;
    for (const [name, points] of Object.entries(frame)) {
      const data = this.series.get(name);
      const x = kind === "step" ? points.x : points.t;
      isOdd ||= !data || (repeats && x[0] < data.x.at(-1));
      if (data) append(data, x, points);
    }
    return isOdd;
  }

  toView(kind, data) {
    if (kind !== "relative" || !data) return data;
    const since = (second) => (second - this.start) / 60;
    const last = data.last && { ...data.last, x: since(data.last.x) };
    return { ...data, last, x: data.x.map(since), nonfinite: data.nonfinite.map(([x, what]) => [since(x), what]) };
  }

  fromView(kind, [from, to]) {
    const base = (x) => (kind === "relative" ? this.start + x * 60 : x);
    return { from: base(from), to: base(to) };
  }
}

// Whether a series has too little for a chart: no line goes through one point.
export function isOnePoint(data) {
  return !data || data.total <= 1;
}

// What is drawn already comes once more after a reread; addPoint leaves it out by its x.
function append(data, x, points) {
  const odd = new Map(points.nonfinite ?? []);
  x.forEach((place, at) => {
    const y = points.y[at];
    addPoint(data, place, y, {
      low: points.y_min?.[at] ?? y,
      high: points.y_max?.[at] ?? y,
      n: points.n?.[at] ?? 1,
      kind: odd.get(points.x[at]),
    });
  });
}

// Gives the first of many charts, and a button for the others.
export function firstOf(box, draw) {
  let most = FIRST_SHOWN;
  const more = button("", () => {
    most = Infinity;
    draw();
  });
  more.hidden = true; // until the numbers come, nobody knows whether there are others
  box.append(more);
  return (all) => {
    if (box.lastElementChild !== more) box.append(more); // behind the charts for the Tab key too
    more.hidden = all.length <= most;
    more.textContent = say("Show {n} more", { n: all.length - most });
    return all.slice(0, most);
  };
}

export function isRate(name) {
  return /(_per_s|\/s)$/.test(name);
}
