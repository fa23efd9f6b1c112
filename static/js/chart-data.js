// The numbers of a chart: points into buckets, smoothing, and how y is drawn.
import { say } from "./dom.js";

const MOST_BUCKETS = 1000;
const DEEPEST = 1e6; // parts of the largest value below which symmetric-log is linear
const [LOW_SHARE, HIGH_SHARE] = [0.01, 0.99];
const ROOM = 0.05;

// Points go into the buckets that the server began (orchestrator/store/metrics/buckets.py): mean, minimum, maximum, count.
// Edges are multiples of the bucket's width, so a new point changes only the last bucket.

// y is null for what is not a number; n counts the finite ones behind it.
export function addPoint(data, x, y, { low = y, high = y, n = 1, kind = "nan" } = {}) {
  const last = data.x.length - 1;
  const finite = y === null ? 0 : n;
  if (data.last) data.last = { x, y, nonfinite: y === null ? kind : null };
  else if (y !== null) data.latest = y;
  if (last >= 0 && x <= data.x[last]) return;
  data.total += Math.max(1, n);
  if (y === null && data.nonfinite?.length < MOST_BUCKETS) data.nonfinite.push([x, kind]);
  if (last >= 0 && data.bucket > 0 && Math.floor(x / data.bucket) === Math.floor(data.x[last] / data.bucket)) {
    merge(data, last, y, low, high, finite);
    return;
  }
  data.x.push(x);
  data.y.push(y);
  data.y_min.push(low);
  data.y_max.push(high);
  data.n.push(finite);
  if (data.x.length > MOST_BUCKETS) halve(data);
}

function merge(data, at, y, low, high, n) {
  if (y === null) return;
  if (data.y[at] === null) {
    [data.y[at], data.y_min[at], data.y_max[at], data.n[at]] = [y, low, high, n];
    return;
  }
  const count = data.n[at] + n;
  data.y[at] += ((y - data.y[at]) * n) / count;
  data.y_min[at] = Math.min(data.y_min[at], low);
  data.y_max[at] = Math.max(data.y_max[at], high);
  data.n[at] = count;
}

function halve(data) {
  const wide = { x: [], y: [], y_min: [], y_max: [], n: [], bucket: data.bucket * 2, total: 0 };
  data.x.forEach((x, at) => addMerged(wide, x, data, at));
  Object.assign(data, { x: wide.x, y: wide.y, y_min: wide.y_min, y_max: wide.y_max, n: wide.n, bucket: wide.bucket });
}

function addMerged(wide, x, { y, y_min: low, y_max: high, n }, at) {
  const last = wide.x.length - 1;
  if (last >= 0 && Math.floor(x / wide.bucket) === Math.floor(wide.x[last] / wide.bucket)) {
    merge(wide, last, y[at], low[at], high[at], n[at]);
    return;
  }
  wide.x.push(x);
  wide.y.push(y[at]);
  wide.y_min.push(low[at]);
  wide.y_max.push(high[at]);
  wide.n.push(n[at]);
}

// Exponential smoothing of bucket means, weighted by how many points each bucket holds, right from the first on.
export function smoothed({ y, n }, share) {
  if (!share) return y;
  let [mean, weight] = [0, 0];
  return y.map((value, at) => {
    if (value === null) return null;
    const keep = share ** (n?.[at] || 1);
    weight = weight * keep + (1 - keep);
    mean += (value - mean) * ((1 - keep) / weight); // so that what is constant stays it exactly
    return mean;
  });
}

// How y is drawn: as it is, logarithmic, or symmetric-logarithmic where values are not positive; with or without outliers.
// {map, type, axis, notes}: map takes a value to what is drawn, axis goes into the layout, notes say what was done.
export function scaleOf(series, { logScale, clips, fromZero }, format) {
  const scale = logScale
    ? logarithmic(series, format)
    : { map: null, type: "linear", axis: fromZero ? { rangemode: "tozero" } : aroundConstant(series), notes: [] };
  if (clips) clip(scale, series);
  return scale;
}

// Plotly would draw a constant from one below to one above it, where 0.0003 looks like 0.
function aroundConstant(series) {
  const all = series.flatMap(({ data }) => [...(data.y_min ?? data.y), ...(data.y_max ?? data.y)]).filter((y) => y !== null);
  const [first] = all;
  if (!first || all.some((y) => y !== first)) return { rangemode: "normal" };
  const room = Math.abs(first) / 2;
  return { range: [first - room, first + room] };
}

function logarithmic(series, format) {
  const { least, largest, isPositive } = extent(series);
  if (isPositive) return { map: null, type: "log", axis: {}, notes: [] };
  const linear = 10 ** Math.floor(Math.log10(Math.max(least, largest / DEEPEST, Number.MIN_VALUE)));
  const map = (y) => (y === null ? null : Math.sign(y) * Math.log10(1 + Math.abs(y) / linear));
  const values = [0];
  for (let at = linear; at <= largest * 10 && values.length < 30; at *= 10) values.push(at, -at);
  const every = Math.ceil(values.length / 12);
  const shown = values.filter((_, at) => at === 0 || Math.ceil(at / 2) % every === 0).sort((one, two) => one - two);
  return {
    map,
    type: "linear",
    axis: { tickmode: "array", tickvals: shown.map(map), ticktext: shown.map(format) },
    notes: [say("not all positive: symmetric log, linear within ±{limit}", { limit: format(linear) })],
  };
}

function extent(series) {
  let [least, largest, isPositive] = [Infinity, 0, true];
  for (const { data } of series) {
    for (const values of [data.y_min ?? data.y, data.y_max ?? data.y]) {
      for (const y of values) {
        if (y === null) continue;
        if (y <= 0) isPositive = false;
        const far = Math.abs(y);
        if (far > 0 && far < least) least = far;
        if (far > largest) largest = far;
      }
    }
  }
  return { least: Number.isFinite(least) ? least : 1, largest: largest || 1, isPositive };
}

function clip(scale, series) {
  const all = series.flatMap(({ data }) => data.y.filter((y) => y !== null)).sort((one, two) => one - two);
  if (all.length < 3) return;
  const low = all[Math.floor(LOW_SHARE * (all.length - 1))];
  const high = all[Math.ceil(HIGH_SHARE * (all.length - 1))];
  let outside = 0;
  for (const { data } of series)
    data.y.forEach((y, at) => {
      if (y !== null && ((data.y_min ?? data.y)[at] < low || (data.y_max ?? data.y)[at] > high)) outside += 1;
    });
  const place = scale.type === "log" ? Math.log10 : (scale.map ?? ((y) => y));
  const room = (place(high) - place(low)) * ROOM || Math.abs(place(high)) * ROOM || 1;
  scale.axis.range = [place(low) - room, place(high) + room];
  scale.notes.push(
    outside
      ? say("{n} of {all} reach outside the 1st to 99th percentile shown", { n: outside, all: all.length })
      : say("none outside the 1st to 99th percentile"),
  );
}
