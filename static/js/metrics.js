// The charts of a job's own numbers: chosen by name, read in buckets, kept fresh from the socket.
import { Chart } from "./charts.js";
import { lastOf, numberWords, placeWords } from "./chart-words.js";
import { flatFrom, spikes } from "./chart-findings.js";
import { ChartWall } from "./chart-wall.js";
import { by, say, store, readStored, make } from "./dom.js";
import { Numbers, firstOf, isOnePoint, isRate } from "./numbers.js";
import { live } from "./socket.js";
import { value } from "./words.js";

const REREAD_MS = 2000;
const FEW_CHARTS = 6; // are not divided into sections; berth/shared/metric_names.py has the same number

export class Metrics {
  #numbers;
  #seams;
  #charts = new Map(); // by the name of its first series
  #windows = new Map(); // by chart, what the server answered for its zoom
  #rereadAt = 0;
  #rereadTimer = 0;
  #first;

  // checkpoints: {step, at} of each that is kept; notes: {step, note}; events: {step, at, event, kind} of its devices.
  // seams: {attempt, step, at} for each attempt after the first; step is null where it started from the beginning.
  constructor(job, seams, { colour = 1, checkpoints = [], notes = [], events = [] } = {}) {
    this.colour = `job-${colour}`;
    this.checkpoints = [...checkpoints, ...notes, ...events];
    this.#numbers = new Numbers(job);
    this.#seams = seams;
    this.box = by("charts");
    this.empty = by("charts-empty");
    this.values = by("values");
    this.#first = firstOf(this.box, () => this.#draw());
    this.sections = new Sections(this.box);
    this.wall = new ChartWall(this.box, () => this.#draw());
    this.view = new ChartView(
      (what) => (what === "x" ? this.#readAnew() : this.#draw()),
      () => this.#reset(),
    );
  }

  // A place on the charts as the log can be asked for it.
  momentOf(kind, x) {
    return kind === "step" ? { step: Math.round(x) } : { time: kind === "time" ? x : this.#numbers.start + x * 60 };
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
    const { status } = answer;
    this.empty.textContent = say("The numbers could not be read ({status}); the job goes on. Reload to try again.", { status });
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
    const wanted = this.wall.choose(charts.filter((names) => !isValue(names)));
    const drawn = this.#first(wanted);
    this.sections.arrange(drawn.map(([name]) => name));
    for (const [name, chart] of this.#charts) chart.figure.hidden = !drawn.some(([first]) => first === name);
    for (const names of drawn) this.#drawGroup(names);
    this.sections.sort(drawn.map(([name]) => name));
    this.wall.drawFormula(this);
  }

  // What was reported once is a row of a table; the server's own table has every metric until there are charts.
  #showValues(names) {
    this.values.hidden = !names.length;
    this.values.querySelector("tbody").replaceChildren(
      ...names.map((name) => {
        const last = lastOf(this.#numbers.toView(this.view.xKind, this.#numbers.series.get(name)));
        const cells = last
          ? [numberWords({ format: value, unit: "" }, last), placeWords(this.view.xKind, last.x)]
          : [say("no number"), ""];
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
    this.#find(chart, names[0]);
    const source = (name) => (chart.window && this.#windows.get(chart)?.[name]) || this.#numbers.series.get(name);
    chart.show(
      names.map((name, index) => ({
        label: names.length > 1 ? ["train", "val"][index] : name,
        colour: this.colour,
        isDashed: index > 0,
        data: this.#numbers.toView(this.view.xKind, source(name)),
      })),
    );
  }

  // What stands out in a chart: once for what it shows, not for each point.
  #find(chart, name) {
    const data = this.#numbers.toView(this.view.xKind, this.#numbers.series.get(name));
    const key = `${this.view.xKind} ${data.x.length} ${data.x[0]} ${data.bucket}`;
    if (chart.foundIn === key) return;
    chart.foundIn = key;
    chart.spots = spikes(data);
    const flat = isLoss(name) ? flatFrom(data) : null;
    const n = chart.spots.length;
    const at = (x) => ({ n, place: placeWords(this.view.xKind, x) });
    chart.findings = [
      n && say(n === 1 ? "{n} spike, first at {place}" : "{n} spikes, first at {place}", at(chart.spots[0][0])),
      flat !== null && say("flat since {place}", at(flat)),
    ].filter(Boolean);
  }

  get series() {
    return this.#numbers.series;
  }

  toView(data) {
    return this.#numbers.toView(this.view.xKind, data);
  }

  #makeChart(names) {
    const csv = `/api/v1/jobs/${this.#numbers.job}/metrics.csv?${new URLSearchParams({ names: names.join(",") })}`;
    const chart = new Chart(this.sections.of(names[0]), {
      place: this.sections.placeOf(names[0]),
      title: names[0],
      fromZero: isRate(names[0]),
      csv,
      onWindow: (window) => this.#readWindow(chart, names, window),
    });
    chart.figure.dataset.name = names[0];
    this.#charts.set(names[0], chart);
    return chart;
  }

  #marks() {
    const place = {
      step: ({ step }) => step,
      time: ({ at }) => at,
      relative: ({ at }) => at && (at - this.#numbers.start) / 60,
    }[this.view.xKind];
    return [...this.#seams, ...this.checkpoints]
      .map((mark) => ({ ...mark, x: place(mark) ?? null }))
      .filter(({ x }) => x !== null);
  }
}

// Charts under the beginning of their names, as the server has laid them out (chart_sections in berth/shared/metric_names.py).
class Sections {
  #grids = new Map(); // by title

  constructor(box) {
    this.box = box;
    for (const section of box.querySelectorAll("[data-section]")) this.#take(section);
  }

  // A section for each title; what the server has reserved and nothing fills is gone.
  arrange(names) {
    this.isDivided = names.length > FEW_CHARTS && new Set(names.map(titleOf)).size > 1;
    for (const place of this.box.querySelectorAll("[data-chart]"))
      if (!names.includes(place.dataset.chart)) place.remove();
    for (const figure of this.box.querySelectorAll("[data-name]")) {
      const grid = this.#gridFor(figure.dataset.name);
      if (grid !== figure.parentElement) grid.append(figure); // names with another beginning came
    }
  }

  // Charts that are there in the order of their names; a section without one is not shown.
  sort(names) {
    for (const grid of this.#grids.values()) {
      const figures = [...grid.children];
      const sorted = figures.toSorted((one, two) => names.indexOf(one.dataset.name) - names.indexOf(two.dataset.name));
      if (sorted.some((figure, at) => figure !== figures[at])) grid.append(...sorted);
      grid.parentElement.hidden = figures.every((figure) => figure.hidden);
    }
  }

  of(name) {
    return this.#gridFor(name);
  }

  placeOf(name) {
    return this.box.querySelector(`[data-chart="${CSS.escape(name)}"]`);
  }

  #gridFor(name) {
    const title = this.isDivided ? titleOf(name) : "";
    return this.#grids.get(title) ?? this.#add(title);
  }

  #add(title) {
    const section = make(
      "section",
      { className: "chart-section", ariaLabel: title || say("Charts") },
      ...(title ? [make("h3", { textContent: title })] : []),
      make("div", { className: "charts" }),
    );
    section.dataset.section = title;
    this.box.insertBefore(section, this.box.querySelector(":scope > button"));
    return this.#take(section);
  }

  #take(section) {
    const grid = section.querySelector(".charts");
    this.#grids.set(section.dataset.section, grid);
    return grid;
  }
}

function isLoss(name) {
  return /loss|verlust|perte|p[eé]rdida|损失/i.test(name);
}

function titleOf(name) {
  const at = name.indexOf("/");
  return at < 0 ? "" : name.slice(0, at);
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
