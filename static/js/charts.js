// One chart with axes: drawn a frame at a time, zoomed and read by pointer or keys, its cursor shared with the others.
import { button, make, say } from "./dom.js";
import { scaleOf } from "./chart-data.js";
import { extremes } from "./chart-findings.js";
import { cursorOn, moveCursor, onCursor } from "./cursor.js";
import { drawnX, fromDrawnX, layoutOf, tracesOf } from "./chart-drawing.js";
import { Readout, lastOf, nearest, numberWords, placeWords, sentence, swatch } from "./chart-words.js";
import { onThemeChange } from "./shell.js";
import { value } from "./words.js";

const FAR_STEPS = 10; // of an arrow with Shift
const CLOSER = 2; // what one + shows of what was there
const ASK_AFTER_MS = 250; // for a window that keys change
const DRAGGED_PX = 6; // less is a click

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
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) [...charts].find((one) => one.plot === target)?.soon();
});

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
      ready.draw((await import("./chart-svg.js")).Drawing); // loaded when the first chart is near the view
    } catch (error) {
      ready.note.textContent = say("This chart could not be drawn ({error}); reload the page.", { error: error.message });
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
  drawn = null; // the Drawing, once there is one
  isHeld = false; // a button is down
  window = null; // what was zoomed to; null follows
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
  #asking = 0;
  #from = 0; // where a pointer began to drag

  // onWindow is told what was zoomed to: [from, to] or null; csv is where all points are read; place is the figure that
  // the server has reserved for it.
  constructor(parent, { title, unit = "", fromZero = false, format = value, onWindow = () => {}, csv = null, place = null }) {
    Object.assign(this, { title, unit, fromZero, format, onWindow, csv });
    count += 1;
    const name = make("b", { className: "cut", textContent: title, id: `chart-${count}` });
    this.latest = make("span", { className: "end" });
    this.back = button(say("Back to live"), () => this.follow(), "is-plain");
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
    this.chosen = make("i", { className: "chart-chosen", hidden: true }); // what a pointer drags over
    const ground = make("div", { className: "chart-ground", ariaHidden: "true" }, this.plot, this.line, this.chosen);
    this.figure.replaceChildren(caption, ground, this.readout.table, this.extremes, this.note);
    if (!place) parent.append(this.figure);
    this.#listen();
    charts.add(this);
    inView.observe(this.plot);
    resized.observe(this.plot);
  }

  get series() {
    return this.#series;
  }

  remove() {
    charts.delete(this);
    waiting.delete(this);
    inView.unobserve(this.plot);
    resized.unobserve(this.plot);
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
    this.back.hidden = !window;
    this.soon();
  }

  canDraw(now) {
    return this.isInView && !this.isHeld && !document.hidden && (this.#isUrgent || now - this.#drawnAt >= 1000);
  }

  draw(Drawing) {
    const { data, layout } = this.drawing();
    this.drawn ??= new Drawing(this.plot);
    if (!this.drawn.draw(data, layout)) return; // hidden; drawn once it has a size
    this.#drawnAt = performance.now();
    this.#isUrgent = false;
    this.showCursor();
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
    const axis = this.drawn?.x;
    const place = x === null || !axis ? -1 : axis.place(drawnX(this.xKind, x));
    this.line.hidden = !(place >= 0 && place <= axis?.length);
    if (!this.line.hidden) this.line.style.transform = `translateX(${(axis.start + place).toFixed(1)}px)`;
  }

  // Drawn at the next frame, though it was drawn less than a second ago.
  soon() {
    this.#isUrgent = true;
    later(this);
  }

  #menu() {
    const opener = make(
      "summary",
      {},
      say("Save"),
      make("span", { className: "unseen", textContent: ` ${say("or copy {name}", { name: this.title })}` }),
    );
    const menu = make("details", { className: "chart-menu" }, opener);
    menu.addEventListener("toggle", async () => menu.open && (await import("./chart-menu.js")).fillMenu(menu, this));
    menu.addEventListener("focusout", (event) => {
      if (!menu.contains(event.relatedTarget)) menu.open = false;
    });
    return menu;
  }

  #listen() {
    this.plot.addEventListener("pointerdown", (event) => this.#grasp(event));
    this.plot.addEventListener("pointermove", (event) => this.#pointed(event));
    this.plot.addEventListener("pointerup", (event) => this.#release(event));
    this.plot.addEventListener("pointercancel", () => this.#letGo());
    this.plot.addEventListener("pointerleave", () => moveCursor(this.xKind, null));
    this.plot.addEventListener("dblclick", () => this.follow());
    this.figure.addEventListener("keydown", (event) => this.#pressed(event));
  }

  // The place of a pointer along x in pixels; outside of the axis where it is not held.
  #across(event) {
    return event.clientX - this.plot.getBoundingClientRect().left - this.drawn.x.start;
  }

  #grasp(event) {
    if (event.button !== 0 || !this.drawn?.x) return;
    this.isHeld = true; // the drawing stands still below the pointer
    this.#from = this.#across(event);
    this.plot.setPointerCapture(event.pointerId);
  }

  #release(event) {
    if (!this.isHeld) return;
    const axis = this.drawn.x;
    const ends = [this.#from, this.#across(event)].map((at) => Math.min(axis.length, Math.max(0, at)));
    ends.sort((one, two) => one - two);
    this.#letGo();
    if (ends[1] - ends[0] < DRAGGED_PX) return;
    this.#become(ends.map((at) => fromDrawnX(this.xKind, axis.value(at))));
    this.soon();
  }

  #letGo() {
    this.isHeld = false;
    this.chosen.hidden = true;
    later(this);
  }

  #pointed(event) {
    const axis = this.drawn?.x;
    if (!axis) return;
    const place = this.#across(event);
    if (this.isHeld) this.#choose(Math.min(axis.length, Math.max(0, place)));
    if (place < 0 || place > axis.length) return;
    moveCursor(this.xKind, this.#pointAt(fromDrawnX(this.xKind, axis.value(place))));
  }

  #choose(to) {
    const [left, right] = [Math.min(this.#from, to), Math.max(this.#from, to)];
    this.chosen.hidden = right - left < DRAGGED_PX;
    this.chosen.style.left = `${this.drawn.x.start + left}px`;
    this.chosen.style.width = `${right - left}px`;
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
    this.#become([middle - (middle - from) * factor, middle + (to - middle) * factor]);
    this.soon();
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
    const words = ({ x, y }) => {
      const values = { number: numberWords(this, { y }), place: placeWords(this.xKind, x) };
      return data.total > data.x.length ? say("{number} near {place}", values) : say("{number} at {place}", values);
    };
    this.extremes.textContent = found
      ? say("highest {high}, lowest {low}", { high: words(found.high), low: words(found.low) })
      : "";
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
