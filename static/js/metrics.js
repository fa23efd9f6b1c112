// The charts of a job's own numbers: chosen by name, read in buckets, kept fresh from the socket.
import { addPoint } from "./buckets.js";
import { Chart } from "./charts.js";
import { live } from "./socket.js";

const FIRST_SHOWN = 12;
const REREAD_MS = 2000;

export class Metrics {
  #job;
  #restarts;
  #charts = new Map(); // by the name of its first series
  #series = new Map();
  #xKind = "step";
  #log = false;
  #rereadAt = 0;
  #rereadTimer = 0;
  #all = false;

  constructor(job, restarts) {
    this.#job = job;
    this.#restarts = restarts;
    this.box = document.getElementById("charts");
    this.empty = document.getElementById("charts-empty");
    const x = document.getElementById("chart-x");
    x.addEventListener("change", () => { this.#xKind = x.value; this.reread(true); });
    const log = document.getElementById("chart-log");
    log.addEventListener("change", () => { this.#log = log.checked; this.#draw(); });
  }

  async start() {
    const seq = await this.#read();
    live.subscribe(`metrics:${this.#job}`, (frame) => this.#receive(frame), { after: seq });
  }

  restartedAt(steps) {
    this.#restarts = steps;
    this.reread();
  }

  // At most every two seconds, unless a person asked for it.
  reread(now = false) {
    clearTimeout(this.#rereadTimer);
    this.#rereadTimer = setTimeout(() => this.#read(), now ? 0 : Math.max(0, this.#rereadAt + REREAD_MS - Date.now()));
  }

  async #read(names = null, window = null) {
    this.#rereadAt = Date.now();
    const query = new URLSearchParams({ x: this.#xKind });
    if (names) query.set("names", names.join(","));
    if (window) [["from", 0], ["to", 1]].forEach(([name, at]) => query.set(name, window[at]));
    const answer = await fetch(`/api/v1/jobs/${this.#job}/metrics?${query}`);
    if (!answer.ok) {
      this.empty.hidden = false;
      this.empty.textContent = `The numbers could not be read (${answer.status}); the job goes on. Reload to try again.`;
      return null;
    }
    const { series, seq } = await answer.json();
    for (const [name, data] of Object.entries(series)) this.#series.set(name, data);
    this.#draw();
    return seq;
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
    const x = this.#xKind === "time" ? points.t : points.x;
    for (let at = 0; at < x.length; at += 1) {
      const y = points.y[at];
      addPoint(data, x[at], y, { low: points.y_min?.[at] ?? y, high: points.y_max?.[at] ?? y, n: points.n?.[at] ?? 1 });
    }
  }

  #draw() {
    const groups = grouped([...this.#series.keys()]);
    this.empty.hidden = groups.length > 0;
    for (const names of this.#all ? groups : groups.slice(0, FIRST_SHOWN)) this.#drawGroup(names);
    this.#offerMore(groups.length);
  }

  #drawGroup(names) {
    const known = this.#charts.get(names[0]);
    const chart = known ?? new Chart(this.box, { title: names[0], fromZero: isRate(names[0]), onWindow: (window) => this.#read(names, window) });
    this.#charts.set(names[0], chart);
    Object.assign(chart, { xKind: this.#xKind, logScale: this.#log, marks: this.#restarts });
    if (chart.window && known && !this.#isWindowed(chart, names)) return;
    chart.show(names.map((name, index) => ({ label: index ? "val" : "train", colour: `job-${index + 1}`, data: this.#series.get(name) })));
  }

  // A zoomed chart shows its window until "Back to live"; new points are to the right of it.
  #isWindowed(chart, names) {
    const data = this.#series.get(names[0]);
    return data.x.length === 0 || data.x.at(-1) <= chart.window[1] * 1.0001 + 1;
  }

  #offerMore(count) {
    const hidden = this.#all ? 0 : count - FIRST_SHOWN;
    this.more ??= this.#moreButton();
    this.more.hidden = hidden <= 0;
    this.more.textContent = `Show ${hidden} more`;
    if (hidden > 0) this.box.append(this.more);
  }

  #moreButton() {
    const button = document.createElement("button");
    button.type = "button";
    button.addEventListener("click", () => { this.#all = true; this.#draw(); });
    return button;
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
