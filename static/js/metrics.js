// The charts of a job's own numbers: chosen by name, read in buckets, kept fresh from the socket.
import { Chart } from "./charts.js";
import { lastOf, numberWords, placeWords } from "./chart-words.js";
import { by, store, readStored, make } from "./dom.js";
import { Numbers, firstOf, isOnePoint, isRate } from "./numbers.js";
import { live } from "./socket.js";
import { value } from "./words.js";

const REREAD_MS = 2000;

export class Metrics {
  #numbers;
  #seams;
  #charts = new Map(); // by the name of its first series
  #windows = new Map(); // by chart, what the server answered for its zoom
  #rereadAt = 0;
  #rereadTimer = 0;
  #first;

  // seams: {attempt, step, at} for each attempt after the first; step is null where it started from the beginning.
  constructor(job, seams) {
    this.#numbers = new Numbers(job);
    this.#seams = seams;
    this.box = by("charts");
    this.empty = by("charts-empty");
    this.values = by("values");
    this.#first = firstOf(this.box, () => this.#draw());
    this.view = new ChartView(
      (what) => (what === "x" ? this.#readAnew() : this.#draw()),
      () => this.#reset(),
    );
  }

  get #topic() {
    return `metrics:${this.#numbers.job}`;
  }

  async start() {
    const seq = await this.#read();
    live.subscribe(this.#topic, (frame) => this.#receive(frame), { after: seq });
  }

  // At most every two seconds, unless a person asked for it.
  reread(now = false) {
    clearTimeout(this.#rereadTimer);
    this.#rereadTimer = setTimeout(() => this.#read(), now ? 0 : Math.max(0, this.#rereadAt + REREAD_MS - Date.now()));
  }

  #readAnew() {
    this.#charts.forEach((chart) => chart.window && chart.follow());
    this.#numbers.take();
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
    this.#numbers.take(answer);
    this.#draw();
    return answer.seq;
  }

  async #ask(more) {
    const kind = this.view.xKind;
    const answer = await this.#numbers.ask(kind, more);
    if (kind !== this.view.xKind) return null; // the reader chose another x while this was read
    if (answer.ok) return answer.json();
    this.empty.hidden = false;
    this.empty.textContent = `The numbers could not be read (${answer.status}); the job goes on. Reload to try again.`;
    return null;
  }

  async #readWindow(chart, names, window) {
    this.#windows.delete(chart);
    if (!window) return this.#draw();
    const answer = await this.#ask({ names: names.join(","), ...this.#numbers.fromView(this.view.xKind, window) });
    if (answer && chart.window === window) {
      this.#windows.set(chart, answer.series);
      this.#draw();
    }
    return undefined;
  }

  #receive(frame) {
    if (frame.type === "gap") {
      this.#read().then((seq) => seq !== null && live.resume(this.#topic, seq));
      return;
    }
    if (frame.type !== "points") return;
    if (this.#numbers.add(this.view.xKind, frame.data, this.#seams.length > 0)) this.reread();
    this.#draw();
  }

  #draw() {
    const { charts, series, isRead } = this.#numbers;
    if (!isRead) return;
    const isValue = (names) => !this.#charts.has(names[0]) && names.every((name) => isOnePoint(series.get(name)));
    this.empty.hidden = charts.length > 0;
    this.#showValues(charts.filter(isValue).flat());
    for (const names of this.#first(charts.filter((names) => !isValue(names)))) this.#drawGroup(names);
  }

  // What was reported once is a row of a table; the server's own table has every metric until there are charts.
  #showValues(names) {
    this.values.hidden = !names.length;
    this.values.querySelector("tbody").replaceChildren(
      ...names.map((name) => {
        const last = lastOf(this.#numbers.toView(this.view.xKind, this.#numbers.series.get(name)));
        const cells = last
          ? [numberWords({ format: value, unit: "" }, last), placeWords(this.view.xKind, last.x)]
          : ["no number", ""];
        return make(
          "tr",
          {},
          make("th", { scope: "row", textContent: name }),
          ...cells.map((textContent) => make("td", { textContent })),
        );
      }),
    );
  }

  #drawGroup(names) {
    const chart = this.#charts.get(names[0]) ?? this.#makeChart(names);
    this.view.apply(chart);
    chart.marks = this.#marks();
    const source = (name) => (chart.window && this.#windows.get(chart)?.[name]) || this.#numbers.series.get(name);
    chart.show(
      names.map((name, index) => ({
        label: names.length > 1 ? ["train", "val"][index] : name,
        colour: `job-${index + 1}`,
        data: this.#numbers.toView(this.view.xKind, source(name)),
      })),
    );
  }

  #makeChart(names) {
    const csv = `/api/v1/jobs/${this.#numbers.job}/metrics.csv?${new URLSearchParams({ names: names.join(",") })}`;
    const chart = new Chart(this.box, {
      title: names[0],
      fromZero: isRate(names[0]),
      csv,
      onWindow: (window) => this.#readWindow(chart, names, window),
    });
    this.#charts.set(names[0], chart);
    return chart;
  }

  #marks() {
    const place = {
      step: ({ step }) => step,
      time: ({ at }) => at,
      relative: ({ at }) => at && (at - this.#numbers.start) / 60,
    }[this.view.xKind];
    return this.#seams.map((seam) => ({ attempt: seam.attempt, x: place(seam) })).filter(({ x }) => x !== null);
  }
}

// The bar above the charts: x, smoothing, log, outliers, reset.  Smoothing is kept for the next time, for each user.
class ChartView {
  xKind = "step";
  logScale = false;
  clips = false;
  smooth = 0;

  // changed is told "x" where numbers must be read again, else "look".
  constructor(changed, reset) {
    const parts = { x: "x", log: "log", outliers: "outliers", slider: "smooth", shown: "smooth-shown" };
    for (const [name, id] of Object.entries(parts)) this[name] = by(`chart-${id}`);
    this.key = `berth-smooth-${document.documentElement.dataset.user}`;
    this.slider.value = Number(readStored(this.key)) || 0;
    this.#take();
    this.x.addEventListener("input", () => (this.#take(), changed("x")));
    for (const box of [this.log, this.outliers]) box.addEventListener("input", () => (this.#take(), changed("look")));
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
    Object.assign(this, {
      xKind: this.x.value,
      logScale: this.log.checked,
      clips: this.outliers.checked,
      smooth: Number(this.slider.value),
    });
    this.shown.textContent = this.smooth.toFixed(2);
  }

  #keep() {
    store(this.key, this.smooth);
  }
}
