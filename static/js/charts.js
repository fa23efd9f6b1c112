// One chart with axes: mean line, band from minimum to maximum, zoom, and a sentence for those who do not see it.
// Names come from jobs, so they are only ever written as text, never handed to Plotly.
import { loadPlotly } from "./plotly.js";
import { colour, onThemeChange } from "./shell.js";
import { smoothed } from "./smoothing.js";
import { value } from "./words.js";

const charts = new Set();
const waiting = new Set();
let frame = 0;

const inView = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = [...charts].find((one) => one.plot === entry.target);
    if (!chart) continue;
    chart.isInView = entry.isIntersecting;
    if (chart.isInView) later(chart);
  }
}, { rootMargin: "200px" });

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
  frame = next.length ? (ready ? requestAnimationFrame(drawOne) : setTimeout(() => { frame = requestAnimationFrame(drawOne); }, 200)) : 0;
}

export class Chart {
  isInView = false;
  isHeld = false; // a button is down
  window = null; // what was zoomed to; null follows
  #drawnAt = -Infinity;
  #series = [];
  #hasEvents = false;

  // onWindow is told what was zoomed to: [from, to] or null.
  constructor(parent, { title, unit = "", fromZero = false, format = value, onWindow = () => {} }) {
    Object.assign(this, { title, unit, fromZero, format, onWindow });
    this.marks = [];
    this.xKind = "step";
    this.logScale = false;
    this.smooth = 0;
    this.figure = document.createElement("figure");
    this.figure.className = "chart";
    const caption = document.createElement("figcaption");
    const name = document.createElement("b");
    name.className = "cut";
    name.textContent = title;
    this.latest = document.createElement("span");
    this.latest.className = "end";
    this.back = document.createElement("button");
    this.back.type = "button";
    this.back.className = "is-plain";
    this.back.textContent = "Back to live";
    this.back.hidden = true;
    this.back.addEventListener("click", () => this.follow());
    caption.append(name, this.latest, this.back);
    this.plot = document.createElement("div");
    this.plot.className = "chart-plot";
    this.plot.setAttribute("aria-hidden", "true");
    this.note = document.createElement("p");
    this.note.className = "chart-note";
    this.figure.append(caption, this.plot, this.note);
    parent.append(this.figure);
    this.plot.addEventListener("pointerdown", () => { this.isHeld = true; });
    addEventListener("pointerup", () => { if (this.isHeld) { this.isHeld = false; later(this); } });
    charts.add(this);
    inView.observe(this.plot);
  }

  remove() {
    charts.delete(this);
    waiting.delete(this);
    inView.unobserve(this.plot);
    globalThis.Plotly?.purge?.(this.plot);
    this.figure.remove();
  }

  // Each series: {label, colour, data: {x, y, y_min, y_max, n, bucket, total, nonfinite}}.
  show(series) {
    this.#series = series;
    this.#describe();
    later(this);
  }

  follow() {
    this.window = null;
    this.back.hidden = true;
    this.onWindow(null);
    later(this);
  }

  canDraw(now) {
    return this.isInView && !this.isHeld && !document.hidden && now - this.#drawnAt >= 1000;
  }

  async draw(Plotly) {
    const traces = this.#series.flatMap((one, index) => tracesOf(one, index, this));
    await Plotly.react(this.plot, traces, this.#layout(), { displayModeBar: false, responsive: true, doubleClick: "reset" });
    this.#drawnAt = performance.now();
    if (!this.#hasEvents) {
      this.#hasEvents = true;
      this.plot.on("plotly_relayout", (change) => this.#zoomed(change));
    }
  }

  #zoomed(change) {
    const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (change["xaxis.autorange"]) return this.follow();
    if (range[0] === undefined) return undefined;
    this.window = this.xKind === "time" ? range.map((text) => Date.parse(`${text.replace(" ", "T")}Z`) / 1000) : range;
    this.back.hidden = false;
    return this.onWindow(this.window);
  }

  #layout() {
    const grid = colour("line");
    const axis = { gridcolor: grid, zeroline: false, linecolor: grid, fixedrange: false, ticks: "", nticks: 6, automargin: true };
    const shape = (x, line) => ({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line });
    const toX = (x) => (this.xKind === "time" ? new Date(x * 1000).toISOString() : x);
    const broken = this.#series.flatMap((one) => one.data.nonfinite ?? []).slice(0, 10);
    return {
      margin: { l: 8, r: 8, t: 8, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("quiet") },
      showlegend: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("edge"), font: { color: colour("text") } },
      dragmode: "zoom",
      uirevision: this.xKind,
      datarevision: performance.now(),
      xaxis: { ...axis, type: this.xKind === "time" ? "date" : "linear", ticksuffix: this.xKind === "relative" ? " min" : "" },
      annotations: this.#series.length > 1 ? this.#series.flatMap((one) => endLabel(one, this)) : [],
      yaxis: { ...axis, fixedrange: true, type: this.logScale ? "log" : "linear", rangemode: this.fromZero ? "tozero" : "normal" },
      shapes: [
        ...(this.xKind === "step" ? this.marks.map((x) => shape(x, { color: colour("edge"), width: 1, dash: "dash" })) : []),
        ...broken.map(([x]) => shape(toX(x), { color: colour("warning"), width: 1.5, dash: "dot" })),
      ],
    };
  }

  #describe() {
    const filled = this.#series.filter((one) => lastOf(one.data) !== null).slice(0, 8);
    this.latest.replaceChildren(...filled.map((one) => legend(one, filled.length > 1, `${this.format(lastOf(one.data))}${this.unit}`)));
    this.note.textContent = this.#series.slice(0, 1).map((one) => sentence(this, one.data)).join("");
  }
}

function legend(one, isNamed, text) {
  const element = document.createElement("span");
  element.className = "nowrap";
  if (isNamed) {
    const swatch = document.createElement("i");
    swatch.className = `swatch colour-${one.colour.split("-")[1]}`;
    element.append(swatch, `${one.label} `);
  }
  element.append(text);
  return element;
}

// The line's letter at its end; only letters of ours are drawn by Plotly, names of jobs are not.
function endLabel({ label, colour: name, data }, { xKind, logScale }) {
  if (!/^[A-Z]$/.test(label) || !data.x.length) return [];
  const y = data.y.at(-1);
  if (y === null || (logScale && y <= 0)) return [];
  const x = xKind === "time" ? new Date(data.x.at(-1) * 1000).toISOString() : data.x.at(-1);
  return [{ x, y: logScale ? Math.log10(y) : y, text: label, showarrow: false, xanchor: "left", font: { color: colour(name), size: 12 } }];
}

function lastOf(data) {
  if (data.latest !== undefined) return data.latest;
  for (let at = data.y.length - 1; at >= 0; at -= 1) if (data.y[at] !== null) return data.y[at];
  return null;
}

function sentence(chart, data) {
  const last = lastOf(data);
  if (last === null) return "No number yet.";
  const lows = (data.y_min ?? data.y).filter((y) => y !== null);
  const parts = [];
  if (chart.xKind === "step") parts.push(`${chart.format(last)}${chart.unit} at step ${value(data.x.at(-1))}`);
  parts.push(`lowest ${chart.format(lows.reduce((low, y) => Math.min(low, y), Infinity))}${chart.unit}`);
  if (data.bucket > 1 && data.total > data.x.length) parts.push(`${value(data.total)} points shown as ${value(data.x.length)} buckets`);
  const broken = data.nonfinite ?? [];
  if (broken.length) parts.push(`not a number at ${chart.xKind} ${chart.xKind === "step" ? value(broken[0][0]) : new Date(broken[0][0] * 1000).toLocaleTimeString()}`);
  const text = parts.join("; ");
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

// One outline for each stretch without a gap: up along the maxima, back along the minima.
function band(x, { y_min: low, y_max: high }) {
  const outline = { x: [], y: [] };
  let first = 0;
  for (let at = 0; at <= x.length; at += 1) {
    if (at < x.length && low[at] !== null) continue;
    for (let on = first; on < at; on += 1) (outline.x.push(x[on]), outline.y.push(high[on]));
    for (let on = at - 1; on >= first; on -= 1) (outline.x.push(x[on]), outline.y.push(low[on]));
    if (at > first) (outline.x.push(null), outline.y.push(null));
    first = at + 1;
  }
  return outline;
}

function tracesOf(one, index, { xKind, smooth }) {
  const { data } = one;
  const x = xKind === "time" ? data.x.map((second) => new Date(second * 1000).toISOString()) : data.x;
  const line = colour(one.colour);
  const traces = [];
  if (data.y_min && (data.bucket > 1 || data.n?.some((count) => count > 1))) {
    traces.push({ ...band(x, data), mode: "lines", line: { width: 0 }, hoverinfo: "skip", fill: "toself", fillcolor: colour(one.colour, 0.18) });
  }
  const shape = { x, mode: x.length === 1 ? "markers" : "lines", connectgaps: false };
  const style = { width: 1.5, dash: index > 3 ? "dash" : "solid" };
  if (smooth) traces.push({ ...shape, y: data.y, line: { ...style, color: colour(one.colour, 0.25) }, hoverinfo: "skip" });
  traces.push({ ...shape, y: smoothed(data, smooth), line: { ...style, color: line }, hovertemplate: "%{y:.5~g}<extra></extra>" });
  return traces;
}
