// Draws lines, bands, marks and labels as SVG, from the same traces and layout that Plotly makes pictures of:
// a job's curves stand without its 300 kB, and a new point costs a few milliseconds.
import { Axis, rangeOf } from "./chart-axes.js";

const SVG = "http://www.w3.org/2000/svg";
const LETTERS = 11; // height of the ticks' text, in pixels
const [TOP, RIGHT, FOOT] = [8, 8, 20];
const GAP = 6; // between an axis and its numbers
const DASHES = { dash: "9 9", dot: "3 3" };
const [Y_TICK_PX, X_TICK_PX] = [30, 80]; // the least room of a tick
let measure = null;

export class Drawing {
  x = null; // the axes; null before the first drawing
  y = null;

  constructor(box) {
    this.box = box;
    this.svg = part("svg", { class: "chart-svg" }); // has children once it is drawn
    box.append(this.svg);
  }

  draw(data, layout) {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return false;
    this.data = data;
    this.layout = layout;
    this.#layAxes(width, height);
    const inner = part("svg", { x: this.x.start, y: TOP, width: this.x.length, height: this.y.length });
    inner.append(...data.flatMap((trace) => this.#trace(trace)), ...layout.shapes.map((shape) => this.#shape(shape)));
    const over = data.filter(({ cliponaxis }) => cliponaxis === false).flatMap((trace) => this.#marks(trace));
    const outer = part("g", { transform: `translate(${this.x.start} ${TOP})` });
    outer.append(...over, ...layout.annotations.map((label) => this.#label(label)));
    setAll(this.svg, { width, height, "font-family": layout.font.family });
    this.svg.replaceChildren(...this.#grid(), inner, outer);
    return true;
  }

  #layAxes(width, height) {
    const { xaxis, yaxis, font } = this.layout;
    const lines = this.data.filter(({ yaxis: own }) => !own);
    const areSingle = lines.every(({ x }) => x.length < 2);
    const high = height - TOP - FOOT;
    const y = rangeOf(yaxis, lines.map((trace) => trace.y), { hasRoom: true });
    this.y = new Axis(yaxis, y, Math.max(2, Math.min(6, high / Y_TICK_PX))).lay(TOP, high);
    const left = 8 + GAP + Math.max(8, ...this.y.ticks.map(({ text }) => widthOf(text, font.family)));
    const long = Math.max(1, width - left - RIGHT);
    const x = rangeOf(xaxis, this.data.map((trace) => trace.x), { hasRoom: areSingle });
    this.x = new Axis(xaxis, x, Math.max(2, Math.min(xaxis.nticks, long / X_TICK_PX))).lay(left, long);
  }

  #across(value) {
    return this.x.place(value);
  }

  #down(value) {
    return this.y.length - this.y.place(value);
  }

  #grid() {
    const { xaxis, yaxis, font } = this.layout;
    const lines = { stroke: yaxis.gridcolor, "stroke-width": 1, "shape-rendering": "crispEdges" };
    const words = { "font-size": LETTERS, fill: font.color };
    const [x, y] = [this.x, this.y];
    const foot = TOP + y.length;
    let drawnTo = -Infinity;
    return [
      ...y.ticks.flatMap(({ at, text }) => {
        const top = TOP + this.#down(at);
        return [
          part("path", { ...lines, d: `M${x.start} ${round(top)}h${round(x.length)}` }),
          word(text, { ...words, x: x.start - GAP, y: round(top + 4), "text-anchor": "end" }),
        ];
      }),
      ...x.ticks.flatMap(({ at, text }) => {
        const left = x.start + this.#across(at);
        const wide = widthOf(text, font.family);
        const middle = Math.min(left, x.start + x.length + RIGHT - wide / 2 - 1); // the last one keeps inside
        const line = part("path", { ...lines, stroke: xaxis.gridcolor, d: `M${round(left)} ${TOP}V${round(foot)}` });
        if (middle - wide / 2 < drawnTo + GAP) return [line];
        drawnTo = middle + wide / 2;
        return [line, word(text, { ...words, x: round(middle), y: round(foot + 14), "text-anchor": "middle" })];
      }),
    ];
  }

  #trace(trace) {
    if (trace.mode === "markers") return trace.cliponaxis === false ? [] : this.#marks(trace);
    const d = this.#path(trace);
    if (!d) return [];
    if (trace.fill) return [part("path", { d, fill: trace.fillcolor, class: "band" })];
    const { color, width, dash } = trace.line;
    const look = { fill: "none", stroke: color, "stroke-width": width, "stroke-linejoin": "round", class: "line" };
    return [part("path", { d, ...look, ...(DASHES[dash] ? { "stroke-dasharray": DASHES[dash] } : {}) })];
  }

  // Broken where there is no number, or none that a logarithm has.
  #path({ x, y }) {
    const parts = [];
    let isOn = false;
    for (let at = 0; at < x.length; at += 1) {
      const down = y[at] === null || x[at] === null ? NaN : this.#down(y[at]);
      if (Number.isFinite(down)) parts.push(`${isOn ? "L" : "M"}${round(this.#across(x[at]))} ${round(down)}`);
      isOn = Number.isFinite(down);
    }
    return parts.join("");
  }

  #marks({ x, y, yaxis, marker, line }) {
    const found = [];
    const { symbol = "circle", size = 6, color = line?.color } = marker ?? {};
    for (let at = 0; at < x.length; at += 1) {
      const [across, down] = [this.#across(x[at]), yaxis ? 0 : this.#down(y[at])];
      if (y[at] === null || !Number.isFinite(down) || across < -1 || across > this.x.length + 1) continue;
      found.push(markOf(symbol, round(across), round(down), size / 2, color, marker?.line?.width));
    }
    return found;
  }

  #shape({ x0, x1, y0, y1, line, name }) {
    const [left, right] = [x0, x1].map((x) => round(this.#across(x)));
    const [low, high] = [y0, y1].map((y) => round(this.y.length * (1 - y)));
    const dash = DASHES[line.dash] ? { "stroke-dasharray": DASHES[line.dash] } : {};
    const look = { stroke: line.color, "stroke-width": line.width, fill: "none", ...dash };
    const mark = part("path", { d: `M${left} ${low}L${right} ${high}`, ...look, class: "mark" });
    if (!name) return mark;
    const title = part("title", {});
    title.textContent = name;
    mark.append(title);
    return mark;
  }

  // The place of a label on a logarithmic axis is a power, as Plotly has it.
  #label({ x, y, yshift, text, font }) {
    const down = this.y.length - ((y - this.y.from) / (this.y.to - this.y.from)) * this.y.length - yshift - 3;
    const place = { x: round(Math.min(this.#across(x), this.x.length)), y: round(down), "text-anchor": "end" };
    return word(text, { ...place, "font-size": font.size, fill: font.color, class: "end-label" });
  }
}

function markOf(symbol, x, y, half, color, width = 1) {
  if (symbol === "circle-open")
    return part("circle", { cx: x, cy: y, r: half, fill: "none", stroke: color, "stroke-width": width, class: "spot" });
  if (symbol === "triangle-down") {
    const d = `M${x - half} ${y - half}h${half * 2}L${x} ${y + half}z`;
    return part("path", { d, fill: color, class: "broken" });
  }
  return part("circle", { cx: x, cy: y, r: half, fill: color });
}

function part(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  setAll(element, attributes);
  return element;
}

function setAll(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

function word(text, attributes) {
  const element = part("text", attributes);
  element.textContent = text;
  return element;
}

const round = (place) => Math.round(place * 10) / 10;

function widthOf(text, family) {
  measure ??= document.createElement("canvas").getContext("2d");
  measure.font = `${LETTERS}px ${family}`;
  return measure.measureText(text).width;
}
