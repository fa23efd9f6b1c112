// Canvases of a sweep's page: hundreds of lines and points within a frame, without a library.
import { make } from "./dom.js";
import { colour } from "./shell.js";
import { value } from "./words.js";

const PAD = { left: 56, right: 16, top: 24, bottom: 24 };
const NEAR_PX = 12;
const FONT = "12px system-ui, sans-serif";

// Where a value of an axis lies between 0 and 1; null where the trial has none.
export function placeOn({ choices, low, high, log }, at) {
  if (at === null || at === undefined) return null;
  if (choices) return choices.length > 1 ? choices.indexOf(at) / (choices.length - 1) : 0.5;
  const scale = log ? Math.log : Number;
  return high > low ? (scale(at) - scale(low)) / (scale(high) - scale(low)) : 0.5;
}

export function valueOn({ low, high, log }, place) {
  return log ? low * (high / low) ** place : low + (high - low) * place;
}

// The texts along an axis, with their places.
export function ticksOf(axis, most = 3) {
  if (axis.choices) return axis.choices.slice(0, 8).map((each) => [placeOn(axis, each), String(each)]);
  const places = axis.high > axis.low ? Array.from({ length: most }, (_, at) => at / (most - 1)) : [0.5];
  return places.map((place) => {
    const at = valueOn(axis, place);
    return [place, brief(axis.type === "int" ? Math.round(at) : Number(at.toPrecision(3)))];
  });
}

const brief = (at) => (at && Math.abs(at) < 1e-3 ? at.toExponential() : value(at));

// One canvas in a box. draw(plot) is given lines to add; the nearest one to the pointer is looked at.
export class Plot {
  lines = [];

  constructor(box, label, draw, { onFocus, onOpen }) {
    Object.assign(this, { box, draw });
    this.canvas = make("canvas", { role: "img", ariaLabel: label });
    box.prepend(this.canvas);
    this.canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      const number = this.nearest(offsetX, offsetY);
      box.classList.toggle("can-open", number !== null);
      onFocus(number);
    });
    this.canvas.addEventListener("pointerleave", () => onFocus(null));
    this.canvas.addEventListener("click", ({ offsetX, offsetY }) => onOpen(this.nearest(offsetX, offsetY)));
    new ResizeObserver(() => this.show()).observe(box);
  }

  show() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    const size = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1])
      [this.canvas.width, this.canvas.height] = size;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = FONT;
    pen.lineWidth = 1;
    Object.assign(this, { pen, width, height, lines: [] });
    this.inner = { left: PAD.left, right: width - PAD.right, top: PAD.top, bottom: height - PAD.bottom };
    this.draw(this);
  }

  x(place) {
    return this.inner.left + place * (this.inner.right - this.inner.left);
  }

  y(place) {
    return this.inner.bottom - place * (this.inner.bottom - this.inner.top);
  }

  text(words, x, y, align = "center", name = "quiet") {
    Object.assign(this.pen, { fillStyle: colour(name), textAlign: align, textBaseline: "middle" });
    this.pen.fillText(words, x, y);
  }

  // Both axes with their ticks, and the name of the lower one.
  frame(across, up) {
    const { left, right, top, bottom } = this.inner;
    this.pen.strokeStyle = colour("line");
    this.pen.beginPath();
    for (const [place, words] of ticksOf(up)) {
      this.pen.moveTo(left, this.y(place));
      this.pen.lineTo(right, this.y(place));
      this.text(words, left - 6, this.y(place), "right");
    }
    this.pen.stroke();
    const ticks = ticksOf(across);
    ticks.forEach(([place, words], at) => {
      const align = ticks.length > 1 ? (at === 0 ? "left" : at === ticks.length - 1 ? "right" : "center") : "center";
      this.text(words, this.x(place), bottom + 12, across.choices && ticks.length > 2 ? "center" : align);
    });
    this.text(across.name, right, top - 14, "right", "text");
    this.text(up.name, 4, top - 14, "left", "text");
  }

  inside() {
    const { left, right, top, bottom } = this.inner;
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(left - 4, top - 4, right - left + 8, bottom - top + 8);
    this.pen.clip();
  }

  // points is a list of [x, y]; null ends a piece of the line.
  line(number, points, style, width = 1) {
    const { pen } = this;
    pen.strokeStyle = style;
    pen.lineWidth = width;
    pen.beginPath();
    let isDown = false;
    for (const point of points) {
      if (point && isDown) pen.lineTo(...point);
      else if (point) pen.moveTo(...point);
      isDown = Boolean(point);
    }
    pen.stroke();
    if (number !== null) this.lines.push([number, points]);
  }

  dot(number, [x, y], style, radius = 3) {
    this.pen.fillStyle = style;
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 2 * Math.PI);
    this.pen.fill();
    if (number !== null) this.lines.push([number, [[x, y]]]);
  }

  // The sign at the end of a curve: a ring where it waits, a cross where it was given up.
  sign([x, y], isCross, style) {
    const { pen } = this;
    pen.strokeStyle = style;
    pen.lineWidth = 1.5;
    pen.beginPath();
    if (isCross) {
      pen.moveTo(x - 3, y - 3);
      pen.lineTo(x + 3, y + 3);
      pen.moveTo(x + 3, y - 3);
      pen.lineTo(x - 3, y + 3);
    } else pen.arc(x, y, 3, 0, 2 * Math.PI);
    pen.stroke();
  }

  // The number whose line is next to this place, or null.
  nearest(x, y) {
    let best = null;
    let least = NEAR_PX;
    for (const [number, points] of this.lines) {
      for (let at = 0; at < points.length; at += 1) {
        const far = points[at] ? distance(x, y, points[at], points[at + 1]) : Infinity;
        if (far < least) [best, least] = [number, far];
      }
    }
    return best;
  }
}

// To a point, or to the line from it to the next one where x lies between both.
function distance(x, y, [left, from], next) {
  if (!next || x < left || x > next[0]) return Math.hypot(x - left, y - from);
  return Math.abs(y - from - ((next[1] - from) * (x - left)) / (next[0] - left || 1));
}
