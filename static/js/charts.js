// One chart with axes: drawn a frame at a time, zoomed and read by pointer or keys, its cursor shared with the others.
import { button, make } from "./dom.js";
import { scaleOf } from "./chart-data.js";
import { extremes } from "./chart-findings.js";
import { cursorOn, moveCursor, onCursor } from "./cursor.js";
import { drawnX, fromDrawnX, layoutOf, loadPlotly, readEnd, tracesOf } from "./chart-drawing.js";
import { Readout, lastOf, nearest, numberWords, placeWords, sentence, swatch } from "./chart-words.js";
import { onThemeChange } from "./shell.js";
import { value } from "./words.js";

const FAR_STEPS = 10; // of an arrow with Shift
const CLOSER = 2; // what one + shows of what was there
const ASK_AFTER_MS = 250; // for a window that keys change

export const charts = new Set(); // those on the page
const waiting = new Set();
let frame = 0;
let count = 0;

const inView = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const chart = [...charts].find((one) => one.plot === entry.target);
      if (!chart) continue;
      chart.isInView = entry.isIntersecting;
      if (chart.isInView) later(chart);
    }
  },
  { rootMargin: "200px" },
);

onThemeChange(() => charts.forEach(later));
document.addEventListener("visibilitychange", () => !document.hidden && charts.forEach(later));

function later(chart) {
  waiting.add(chart);
  frame ||= requestAnimationFrame(drawOne);
}

// One chart a frame, in turn, each at most once a second; none that nobody sees.
async function drawOne() {
  const now = performance.now();
  const ready = [...waiting].find((chart) => chart.canDraw(now));
  if (ready) {
    waiting.delete(ready);
    try {
      await ready.draw(await loadPlotly());
    } catch (error) {
      ready.note.textContent = error.message;
    }
  }
  const next = [...waiting].filter((chart) => chart.isInView && !document.hidden);
  frame = next.length
    ? ready
      ? requestAnimationFrame(drawOne)
      : setTimeout(() => {
          frame = requestAnimationFrame(drawOne);
        }, 200)
    : 0;
}

onCursor(() => {
  for (const chart of charts) if (chart.isInView) chart.showCursor();
});

export class Chart {
  isInView = false;
  isHeld = false; // a button is down
  window = null; // what was zoomed to; null follows
  revision = 0; // of what Plotly keeps of a zoom
  marks = []; // {attempt, note, x}: where attempts begin and notes are; without both, where a checkpoint was kept
  spots = []; // [x, y] of what stands out
  findings = []; // in words
  xKind = "step";
  logScale = false;
  clips = false;
  smooth = 0;
  #drawnAt = -Infinity;
  #isUrgent = false;
  #series = [];
  #hasEvents = false;
  #asking = 0;

  // onWindow is told what was zoomed to: [from, to] or null; csv is where all points are read; place is the figure that
  // the server has reserved for it.
  constructor(parent, { title, unit = "", fromZero = false, format = value, onWindow = () => {}, csv = null, place = null }) {
    Object.assign(this, { title, unit, fromZero, format, onWindow, csv });
    count += 1;
    const name = make("b", { className: "cut", textContent: title, id: `chart-${count}` });
    this.latest = make("span", { className: "end" });
    this.back = button("Back to live", () => this.follow(), "is-plain");
    this.back.hidden = true;
    this.plot = make("div", { className: "chart-plot" });
    this.line = make("i", { className: "chart-cursor", hidden: true });
    this.note = make("p", { className: "chart-note", id: `chart-${count}-note` });
    this.readout = new Readout(title);
    this.figure = Object.assign(place ?? make("figure"), { className: "chart", tabIndex: 0 });
    delete this.figure.dataset.chart;
    this.figure.setAttribute("aria-labelledby", name.id);
    this.figure.setAttribute("aria-describedby", this.note.id);
    this.extremes = make("p", { className: "chart-extremes cut", ariaHidden: "true" }); // the note says them too
    const caption = make("figcaption", {}, name, this.latest, this.back, this.#menu());
    const ground = make("div", { className: "chart-ground", ariaHidden: "true" }, this.plot, this.line);
    this.figure.replaceChildren(caption, ground, this.readout.table, this.extremes, this.note);
    if (!place) parent.append(this.figure);
    this.#listen();
    charts.add(this);
    inView.observe(this.plot);
  }

  get series() {
    return this.#series;
  }

  remove() {
    charts.delete(this);
    waiting.delete(this);
    inView.unobserve(this.plot);
    globalThis.Plotly?.purge?.(this.plot);
    this.figure.remove();
  }

  // Each series: {label, colour, data: {x, y, y_min, y_max, n, bucket, total, nonfinite, tail}}.
  show(series) {
    this.#series = series;
    const isValue = !this.window && series.length > 0 && series.every(({ data }) => data.total < 2);
    this.figure.classList.toggle("is-value", isValue); // a point alone is no curve
    this.#describe();
    later(this);
  }

  follow() {
    clearTimeout(this.#asking);
    this.look(null);
    this.onWindow(null);
  }

  // What to show of x: [from, to], or null for all there is.
  look(window) {
    if (window === this.window) return;
    this.window = window;
    this.revision += 1;
    this.back.hidden = !window;
    this.#soon();
  }

  canDraw(now) {
    return this.isInView && !this.isHeld && !document.hidden && (this.#isUrgent || now - this.#drawnAt >= 1000);
  }

  async draw(Plotly) {
    const { data, layout } = this.drawing();
    await Plotly.react(this.plot, data, layout, { displayModeBar: false, responsive: true, doubleClick: false });
    this.#drawnAt = performance.now();
    this.#isUrgent = false;
    this.showCursor();
    if (!this.#hasEvents) {
      this.#hasEvents = true;
      this.plot.on("plotly_relayout", (change) => this.#zoomed(change));
      this.plot.on("plotly_doubleclick", () => this.follow());
    }
  }

  drawing() {
    const scale = scaleOf(this.#series, this, this.format);
    return { data: tracesOf(this.#series, scale, this), layout: layoutOf(this, this.#series, scale) };
  }

  // What the log points at is a step; a chart shows its nearest point.
  showCursor() {
    const x = cursorOn(this.xKind);
    this.figure.classList.toggle("has-cursor", x !== null);
    this.readout.show(this, this.#series, x);
    const axis = this.plot._fullLayout?.xaxis;
    const place = x === null || !axis?.l2p ? -1 : axis.l2p(drawnX(this.xKind, x));
    this.line.hidden = !(place >= 0 && place <= axis?._length);
    if (!this.line.hidden) this.line.style.transform = `translateX(${(axis._offset + place).toFixed(1)}px)`;
  }

  #soon() {
    this.#isUrgent = true;
    later(this);
  }

  #menu() {
    const opener = make(
      "summary",
      {},
      "Save",
      make("span", { className: "unseen", textContent: ` or copy ${this.title}` }),
    );
    const menu = make("details", { className: "chart-menu" }, opener);
    menu.addEventListener("toggle", async () => menu.open && (await import("./chart-menu.js")).fillMenu(menu, this));
    menu.addEventListener("focusout", (event) => {
      if (!menu.contains(event.relatedTarget)) menu.open = false;
    });
    return menu;
  }

  #listen() {
    this.plot.addEventListener("pointerdown", () => {
      this.isHeld = true;
    });
    addEventListener("pointerup", () => {
      if (this.isHeld) {
        this.isHeld = false;
        later(this);
      }
    });
    this.plot.addEventListener("pointermove", (event) => this.#pointed(event));
    this.plot.addEventListener("pointerleave", () => moveCursor(this.xKind, null));
    this.figure.addEventListener("keydown", (event) => this.#pressed(event));
  }

  #pointed(event) {
    const axis = this.plot._fullLayout?.xaxis;
    if (!axis?.p2l) return;
    const place = event.clientX - this.plot.getBoundingClientRect().left - axis._offset;
    if (place < 0 || place > axis._length) return;
    moveCursor(this.xKind, this.#pointAt(fromDrawnX(this.xKind, axis.p2l(place))));
  }

  #pointAt(x) {
    const data = this.#series.find((one) => one.data.x.length)?.data;
    return data ? data.x[nearest(data, x)] : null;
  }

  #pressed(event) {
    if (event.target !== this.figure || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? FAR_STEPS : 1;
    const run = {
      ArrowLeft: () => this.#step(-far),
      ArrowRight: () => this.#step(far),
      Home: () => this.#step(-Infinity),
      End: () => this.#step(Infinity),
      "+": () => this.#zoom(1 / CLOSER),
      "=": () => this.#zoom(1 / CLOSER),
      "-": () => this.#zoom(CLOSER),
      0: () => this.follow(),
      t: () => this.showTable(),
      T: () => this.showTable(),
      f: () => this.fill(),
      F: () => this.fill(),
      Escape: () => moveCursor(this.xKind, null),
    }[event.key];
    if (!run) return;
    event.preventDefault();
    event.stopPropagation();
    run();
  }

  // The whole screen, and back.
  fill() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.figure.requestFullscreen?.();
  }

  async showTable() {
    (await import("./chart-menu.js")).openTable(this);
  }

  #step(by) {
    const data = this.#series.find((one) => one.data.x.length)?.data;
    if (!data) return;
    const last = data.x.length - 1;
    const at = cursorOn(this.xKind) === null ? last : nearest(data, cursorOn(this.xKind));
    moveCursor(this.xKind, data.x[Math.min(last, Math.max(0, at + by))]);
  }

  #zoom(factor) {
    const ends = this.#series.flatMap(({ data }) => (data.x.length ? [data.x[0], data.x.at(-1)] : []));
    if (!ends.length) return;
    const [from, to] = this.window ?? [Math.min(...ends), Math.max(...ends)];
    const middle = cursorOn(this.xKind) ?? (from + to) / 2;
    this.revision += 1;
    this.#become([middle - (middle - from) * factor, middle + (to - middle) * factor]);
    this.#soon();
  }

  #zoomed(change) {
    const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (change["xaxis.autorange"]) this.follow();
    else if (from !== undefined) this.#become([readEnd(this.xKind, from), readEnd(this.xKind, to)]);
  }

  #become(window) {
    this.window = window;
    this.back.hidden = false;
    clearTimeout(this.#asking);
    this.#asking = setTimeout(() => this.onWindow(this.window), ASK_AFTER_MS);
  }

  #describe() {
    const filled = this.#series.filter((one) => lastOf(one.data) !== null).slice(0, 8);
    this.latest.replaceChildren(
      ...filled.map((one) => legend(one, filled.length > 1, numberWords(this, lastOf(one.data)))),
    );
    const { notes } = scaleOf(this.#series, this, this.format);
    this.note.textContent = this.#series
      .slice(0, 1)
      .map((one) => sentence(this, one.data, notes))
      .join("");
    this.note.title = this.note.textContent;
    this.#tellExtremes();
    // The values are there from the start on: what stands below the chart keeps its place.
    if (this.isInView || this.readout.isEmpty) this.showCursor();
  }

  #tellExtremes() {
    const data = this.#series[0]?.data;
    const found = data?.x.length ? extremes(data) : null;
    const at = data?.total > data?.x.length ? "near" : "at";
    const words = ({ x, y }) => `${numberWords(this, { y })} ${at} ${placeWords(this.xKind, x)}`;
    this.extremes.textContent = found ? `highest ${words(found.high)}, lowest ${words(found.low)}` : "";
    this.extremes.title = this.note.textContent;
  }
}

function legend(one, isNamed, text) {
  return make(
    "span",
    { className: "nowrap" },
    ...(isNamed
      ? [swatch(one.colour, one.isDashed), make("span", { className: "legend-name", textContent: `${one.label} ` })]
      : []),
    make("b", { textContent: text }),
  );
}
