// What a chart draws: a band from minimum to maximum, the mean, the raw line behind a smoothed one, marks.
// In the words of Plotly (traces and layout), which makes the pictures that people save; chart-svg.js draws them on the page.
import { smoothed } from "./chart-data.js";
import { colour } from "./shell.js";

const FAINT = 0.25;
const BAND = 0.18;
const [PLOT_PX, LABEL_PX] = [180, 12]; // heights of what lines are drawn in, and of a letter
const minutesEast = -new Date().getTimezoneOffset();

// Times are drawn as UTC; moved by the zone they read as the reader's clock.
export function drawnX(kind, x) {
  return kind === "time" ? x * 1000 + minutesEast * 60000 : x;
}

export function fromDrawnX(kind, x) {
  return kind === "time" ? (x - minutesEast * 60000) / 1000 : x;
}

export function tracesOf(series, scale, { xKind, smooth, spots = [] }) {
  return [
    ...series.flatMap((one, index) => linesOf(one, index, scale, xKind, smooth)),
    ...spotsOf(spots, scale, xKind),
    ...brokenOf(series, xKind),
  ];
}

// What stands out, in a ring.
function spotsOf(spots, { map }, xKind) {
  if (!spots.length) return [];
  const y = spots.map(([, value]) => (map ? map(value) : value));
  const marker = { symbol: "circle-open", size: 9, color: colour("warning"), line: { width: 1.5 } };
  return [{ x: spots.map(([x]) => drawnX(xKind, x)), y, mode: "markers", hoverinfo: "skip", marker }];
}

function linesOf({ colour: name, data, isDashed }, index, { map }, xKind, smooth) {
  const x = xKind === "time" ? data.x.map((at) => drawnX(xKind, at)) : data.x;
  const drawn = (values) => (map ? values.map(map) : values);
  const traces = [];
  if (data.y_min && name !== "edge" && (data.bucket > 1 || data.n?.some((count) => count > 1))) {
    const outline = band(x, drawn(data.y_min), drawn(data.y_max));
    traces.push({
      ...outline,
      mode: "lines",
      line: { width: 0 },
      hoverinfo: "skip",
      fill: "toself",
      fillcolor: colour(name, BAND),
    });
  }
  const mode = x.length === 1 ? "markers" : "lines";
  const line = (y, from, to, alpha) => ({
    x: x.slice(from, to),
    y: drawn(y.slice(from, to)),
    mode,
    connectgaps: false,
    hoverinfo: "skip",
    line: { width: 1.5, dash: (isDashed ?? index > 3) ? "dash" : "solid", color: colour(name, alpha) },
  });
  const found = data.tail === undefined || data.tail === null ? -1 : data.x.findIndex((at) => at >= data.tail);
  const end = found < 0 ? x.length : found;
  if (smooth) traces.push(line(data.y, 0, end, FAINT));
  traces.push(line(smoothed(data, smooth), 0, end, 1));
  if (end < x.length) traces.push(line(data.y, Math.max(0, end - 1), x.length, FAINT));
  return traces;
}

// One outline for each stretch without a gap: up along the maxima, back along the minima.
function band(x, low, high) {
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

// Where values were no numbers: marks along the top edge, on an axis of their own that is not shown.
function brokenOf(series, xKind) {
  const x = series.flatMap(({ data }) => (data.nonfinite ?? []).map(([at]) => drawnX(xKind, at)));
  if (!x.length) return [];
  return [
    {
      x,
      y: x.map(() => 1),
      yaxis: "y2",
      mode: "markers",
      cliponaxis: false,
      hoverinfo: "skip",
      marker: { symbol: "triangle-down", size: 9, color: colour("warning") },
    },
  ];
}

export function ground() {
  return {
    margin: { l: 8, r: 8, t: 8, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("quiet") },
  };
}

export function axisLook() {
  return {
    gridcolor: colour("line"),
    zeroline: false,
    linecolor: colour("line"),
    automargin: true,
    minexponent: 6,
    separatethousands: true,
  };
}

const END_LETTERS = 24;

export function layoutOf(chart, series, scale) {
  const { xKind, window } = chart;
  const axis = { ...axisLook(), ticks: "", nticks: 6 };
  const range = window ? { range: window.map((x) => drawnX(xKind, x)), autorange: false } : { autorange: true };
  return {
    ...ground(),
    showlegend: false,
    hovermode: false,
    xaxis: {
      ...axis,
      ...range,
      type: xKind === "time" ? "date" : "linear",
      ticksuffix: xKind === "relative" ? " min" : "",
    },
    yaxis: { ...axis, fixedrange: true, type: scale.type, ...scale.axis },
    yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
    annotations:
      series.length > 1
        ? apart(
            series.flatMap((one) => endLabel(one, xKind, scale)),
            scale.axis.rangemode === "tozero",
          )
        : [],
    shapes: chart.marks.map((mark) => markOf(mark, xKind)),
  };
}

// An attempt is a dashed line through the chart, a note and a slowdown dotted ones, a checkpoint a short one at its foot, a
// neighbour on its devices a short one at its top.
function markOf({ attempt, note, event, kind, x }, xKind) {
  const at = drawnX(xKind, x);
  const shape = { type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, name: event ?? note ?? "" };
  if (kind === "slowed") return { ...shape, line: { color: colour("warning"), width: 1, dash: "dot" } };
  if (event) return { ...shape, y0: 0.9, line: { color: colour("accent"), width: 2, dash: kind === "left" ? "dot" : "solid" } };
  if (attempt || note) return { ...shape, line: { color: colour("edge"), width: 1, dash: note ? "dot" : "dash" } };
  return { ...shape, y1: 0.06, line: { color: colour("good"), width: 2 } };
}

// The line's name at its end, above it.
function endLabel({ end, colour: name, data }, xKind, { map, type }) {
  const last = data.y.at(-1) ?? null;
  if (!end || last === null) return [];
  const y = type === "log" ? Math.log10(last) : map ? map(last) : last;
  return [
    {
      x: drawnX(xKind, data.x.at(-1)),
      y,
      text: end.length > END_LETTERS ? `${end.slice(0, END_LETTERS)}…` : end,
      showarrow: false,
      xanchor: "right",
      yanchor: "bottom",
      font: { color: colour(name), size: 12 },
    },
  ];
}

// Labels of lines that end beside each other, moved up so that each can be read.
function apart(labels, fromZero) {
  labels.sort((one, two) => one.y - two.y);
  const ends = [...labels.map(({ y }) => y), ...(fromZero ? [0] : [])];
  const high = Math.max(...ends) - Math.min(...ends) || 1;
  labels.forEach((label, at) => {
    const place = (label.y / high) * PLOT_PX;
    const below = labels.slice(0, at).findLast(({ x }) => Math.abs(x - label.x) < x / 30);
    label.place = Math.max(place, (below?.place ?? -Infinity) + LABEL_PX);
    label.yshift = label.place - place;
  });
  return labels;
}
