// What a chart has to tell beside its line: extremes, spikes, and that it is flat; found in what is drawn.
const AROUND = 12; // buckets on each side that a spike is measured against
const FAR = 8; // times their usual distance from their middle
const MOST_SPIKES = 20;
const FLAT_SHARE = 0.3; // of the run, at its end
const FLAT_PERCENT = 1; // of the fall so far
const FEWEST = 40; // buckets: fewer show no shape

const finite = (values) => values.filter((value) => value !== null);

function middle(values) {
  const sorted = values.toSorted((one, two) => one - two);
  return sorted[Math.floor(sorted.length / 2)];
}

// {low, high}: {x, y} each; null without numbers.
export function extremes({ x, y, y_min: low = y, y_max: high = y }) {
  let [least, most] = [null, null];
  for (let at = 0; at < x.length; at += 1) {
    if (low[at] !== null && (least === null || low[at] < least.y)) least = { x: x[at], y: low[at] };
    if (high[at] !== null && (most === null || high[at] > most.y)) most = { x: x[at], y: high[at] };
  }
  return least && { low: least, high: most };
}

// Where a bucket's highest value is far above those around it, as [x, y].
export function spikes({ x, y, y_max: high = y }) {
  if (x.length < FEWEST) return [];
  const found = [];
  for (let at = 0; at < x.length && found.length < MOST_SPIKES; at += 1) {
    if (high[at] === null) continue;
    const near = finite([...high.slice(Math.max(0, at - AROUND), at), ...high.slice(at + 1, at + 1 + AROUND)]);
    if (near.length < AROUND) continue;
    const usual = middle(near);
    const spread = middle(near.map((value) => Math.abs(value - usual)));
    const least = Math.max(FAR * spread, Math.abs(usual) * 0.5);
    if (high[at] - usual > least && high[at] >= (high[at - 1] ?? -Infinity)) found.push([x[at], high[at]]);
  }
  return found;
}

// From where a falling line has not fallen any more; null while it falls, or never did.
export function flatFrom({ x, y }) {
  if (y.length < FEWEST) return null;
  const from = Math.floor(y.length * (1 - FLAT_SHARE));
  const part = Math.ceil(y.length / 10);
  const [first, before, last] = [y.slice(0, part), y.slice(from, from + part), y.slice(-part)].map((values) =>
    middle(finite(values)),
  );
  if (!(before < first) || last === undefined) return null;
  return before - last < ((first - before) * FLAT_PERCENT) / 100 ? x[from] : null;
}
