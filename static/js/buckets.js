// Points into the buckets that the server began (orchestrator/store/buckets.py): mean, minimum, maximum, count.
// Edges are multiples of the bucket's width, so a new point changes only the last bucket.
const MOST = 1000;

// y is null for what is not a number; n counts the finite ones behind it.
export function addPoint(data, x, y, { low = y, high = y, n = 1, kind = "nan" } = {}) {
  const last = data.x.length - 1;
  const finite = y === null ? 0 : n;
  if (y !== null) data.latest = y;
  if (last >= 0 && x <= data.x[last]) return;
  data.total += Math.max(1, n);
  if (y === null && data.nonfinite?.length < MOST) data.nonfinite.push([x, kind]);
  if (last >= 0 && data.bucket > 0 && Math.floor(x / data.bucket) === Math.floor(data.x[last] / data.bucket)) {
    merge(data, last, y, low, high, finite);
    return;
  }
  data.x.push(x);
  data.y.push(y);
  data.y_min.push(low);
  data.y_max.push(high);
  data.n.push(finite);
  if (data.x.length > MOST) halve(data);
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
