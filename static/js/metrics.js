// The charts of a job's own numbers: chosen by name, read in buckets, kept fresh from the socket.
import { addPoint } from "./chart-data.js";
import { Chart } from "./charts.js";
import { button, by, keep, kept } from "./dom.js";
import { live } from "./socket.js";

const FIRST_SHOWN = 12;
const REREAD_MS = 2000;

export class Metrics {
  #job;
  #seams;
  #charts = new Map(); // by the name of its first series
  #series = new Map(); // x as the server tells it: a step, or seconds since 1970
  #windows = new Map(); // by chart, what the server answered for its zoom
  #start = null; // of the first point, where x is relative
  #rereadAt = 0;
  #rereadTimer = 0;
  #all = false;

  // seams: {attempt, step, at} for each attempt after the first; step is null where it began anew.
  constructor(job, seams) {
    this.#job = job;
    this.#seams = seams;
    this.box = by("charts");
    this.empty = by("charts-empty");
    this.view = new ChartView((what) => (what === "x" ? this.#readAnew() : this.#draw()), () => this.#reset());
  }

  async start() {
    const seq = await this.#read();
    live.subscribe(`metrics:${this.#job}`, (frame) => this.#receive(frame), { after: seq });
  }

  // At most every two seconds, unless a person asked for it.
  reread(now = false) {
    clearTimeout(this.#rereadTimer);
    this.#rereadTimer = setTimeout(() => this.#read(), now ? 0 : Math.max(0, this.#rereadAt + REREAD_MS - Date.now()));
  }

  #readAnew() {
    this.#charts.forEach((chart) => chart.window && chart.follow());
    this.#series.clear();
    this.reread(true);
  }

  #reset() {
    this.#charts.forEach((chart) => chart.window && chart.follow());
    this.#draw();
  }

  async #read() {
    this.#rereadAt = Date.now();
    const answer = await this.#ask({});
    if (!answer) return null;
    for (const [name, data] of Object.entries(answer.series)) this.#series.set(name, data);
    if (this.view.xKind === "relative") this.#start = Math.min(...[...this.#series.values()].map((data) => data.x[0] ?? Infinity));
    this.#draw();
    return answer.seq;
  }

  async #ask(more) {
    const kind = this.view.xKind;
    const query = new URLSearchParams({ x: kind === "step" ? "step" : "time", ...more });
    const answer = await fetch(`/api/v1/jobs/${this.#job}/metrics?${query}`);
    if (kind !== this.view.xKind) return null; // another x was chosen meanwhile
    if (answer.ok) return answer.json();
    this.empty.hidden = false;
    this.empty.textContent = `The numbers could not be read (${answer.status}); the job goes on. Reload to try again.`;
    return null;
  }

  async #readWindow(chart, names, window) {
    this.#windows.delete(chart);
    if (!window) return this.#draw();
    const [from, to] = window.map((x) => this.#toBase(x));
    const answer = await this.#ask({ names: names.join(","), from, to });
    if (answer && chart.window === window) {
      this.#windows.set(chart, answer.series);
      this.#draw();
    }
    return undefined;
  }

  #toBase(x) {
    return this.view.xKind === "relative" ? this.#start + x * 60 : x;
  }

  #toView(data) {
    if (this.view.xKind !== "relative") return data;
    const since = (second) => (second - this.#start) / 60;
    return { ...data, x: data.x.map(since), nonfinite: data.nonfinite.map(([x, kind]) => [since(x), kind]) };
  }

  #receive(frame) {
    if (frame.type === "gap") {
      this.#read().then((seq) => seq !== null && live.resume(`metrics:${this.#job}`, seq));
      return;
    }
    if (frame.type !== "points") return;
    let isNew = false;
    for (const [name, points] of Object.entries(frame.data)) {
      const data = this.#series.get(name);
      if (data) this.#append(data, points);
      else isNew = true;
    }
    if (isNew) this.reread();
    this.#draw();
  }

  // What is drawn already comes once more after a reread; addPoint leaves it out by its x.
  #append(data, points) {
    const x = this.view.xKind === "step" ? points.x : points.t;
    const odd = new Map(points.nonfinite ?? []);
    if (this.#seams.length && x[0] < data.x.at(-1)) this.reread(); // it repeats what an earlier attempt did
    for (let at = 0; at < x.length; at += 1) {
      const y = points.y[at];
      addPoint(data, x[at], y, { low: points.y_min?.[at] ?? y, high: points.y_max?.[at] ?? y, n: points.n?.[at] ?? 1, kind: odd.get(points.x[at]) });
    }
  }

  #draw() {
    const groups = grouped([...this.#series.keys()]);
    this.empty.hidden = groups.length > 0;
    for (const names of this.#all ? groups : groups.slice(0, FIRST_SHOWN)) this.#drawGroup(names);
    this.#offerMore(groups.length);
  }

  #drawGroup(names) {
    const chart = this.#charts.get(names[0]) ?? this.#makeChart(names);
    this.view.apply(chart);
    chart.marks = this.#marks();
    const source = (name) => (chart.window && this.#windows.get(chart)?.[name]) || this.#series.get(name);
    chart.show(names.map((name, index) => ({ label: names.length > 1 ? ["train", "val"][index] : name, colour: `job-${index + 1}`, data: this.#toView(source(name)) })));
  }

  #makeChart(names) {
    const csv = `/api/v1/jobs/${this.#job}/metrics.csv?${new URLSearchParams({ names: names.join(",") })}`;
    const chart = new Chart(this.box, { title: names[0], fromZero: isRate(names[0]), csv, onWindow: (window) => this.#readWindow(chart, names, window) });
    this.#charts.set(names[0], chart);
    return chart;
  }

  #marks() {
    const place = { step: ({ step }) => step, time: ({ at }) => at, relative: ({ at }) => at && (at - this.#start) / 60 }[this.view.xKind];
    return this.#seams.map((seam) => ({ attempt: seam.attempt, x: place(seam) })).filter(({ x }) => x !== null);
  }

  #offerMore(count) {
    const hidden = this.#all ? 0 : count - FIRST_SHOWN;
    this.more ??= button("", () => { this.#all = true; this.#draw(); });
    this.more.hidden = hidden <= 0;
    this.more.textContent = `Show ${hidden} more`;
    if (hidden > 0) this.box.append(this.more);
  }
}

// The bar above the charts: x, smoothing, log, outliers, reset.  Smoothing is kept for the next time, for each user.
class ChartView {
  xKind = "step";
  logScale = false;
  clips = false;
  smooth = 0;

  // changed is told "x" where numbers have to be read anew, else "look".
  constructor(changed, reset) {
    const parts = { x: "x", log: "log", outliers: "outliers", slider: "smooth", shown: "smooth-shown" };
    for (const [name, id] of Object.entries(parts)) this[name] = by(`chart-${id}`);
    this.key = `berth-smooth-${document.documentElement.dataset.user}`;
    this.slider.value = Number(kept(this.key)) || 0;
    this.#take();
    this.x.addEventListener("change", () => (this.#take(), changed("x")));
    for (const box of [this.log, this.outliers]) box.addEventListener("change", () => (this.#take(), changed("look")));
    this.slider.addEventListener("input", () => (this.#take(), this.#keep(), changed("look")));
    by("chart-reset").addEventListener("click", () => {
      this.log.checked = this.outliers.checked = false;
      this.slider.value = 0;
      this.#take();
      this.#keep();
      reset();
    });
  }

  apply(chart) {
    const { xKind, logScale, clips, smooth } = this;
    Object.assign(chart, { xKind, logScale, clips, smooth });
  }

  #take() {
    Object.assign(this, { xKind: this.x.value, logScale: this.log.checked, clips: this.outliers.checked, smooth: Number(this.slider.value) });
    this.shown.textContent = this.smooth.toFixed(2);
  }

  #keep() {
    keep(this.key, this.smooth);
  }
}

export function isRate(name) {
  return /(_per_s|\/s)$/.test(name);
}

function rank(name) {
  if (/loss$/.test(name)) return 0;
  if (isRate(name)) return 2;
  if (/(^|[/_])lr$/.test(name)) return 3;
  if (/grad_norm$/.test(name)) return 4;
  return 5;
}

// val_x and val/x go over their training twin; losses first, then throughput, then the rest by name.
export function grouped(names) {
  const known = new Set(names);
  const twins = new Map();
  for (const name of names) {
    const hit = /^(?:val|valid|eval)([/_])(.+)$/.exec(name);
    const twin = hit && [`train${hit[1]}${hit[2]}`, hit[2]].find((one) => known.has(one));
    if (twin && !twins.has(twin)) twins.set(twin, name);
  }
  const over = new Set(twins.values());
  return names
    .filter((name) => !over.has(name))
    .sort((one, two) => rank(one) - rank(two) || one.localeCompare(two))
    .map((name) => (twins.has(name) ? [name, twins.get(name)] : [name]));
}
