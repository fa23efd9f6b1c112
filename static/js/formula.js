// A formula over the names of metrics, such as "train/loss - val/loss": loaded when somebody writes one.
// Names may hold the signs of arithmetic; a name counts where it stands whole, the longest first.
const NUMBER = /^\d+(?:\.\d+)?(?:e[+-]?\d+)?/i;
const BINDS = { "+": 1, "-": 1, "*": 2, "/": 2 };
const RUN = {
  "+": (one, two) => one + two,
  "-": (one, two) => one - two,
  "*": (one, two) => one * two,
  "/": (one, two) => one / two,
};

// The parts in the order in which a stack machine takes them; null where the text is no formula.
export function parse(text, names) {
  const known = [...names].toSorted((one, two) => two.length - one.length);
  const [output, waiting] = [[], []];
  let rest = text.trim();
  let wantsValue = true;
  while (rest) {
    const name = wantsValue && known.find((each) => rest.startsWith(each) && !/^[\w/.]/.test(rest.slice(each.length)));
    const number = wantsValue && !name && NUMBER.exec(rest)?.[0];
    const sign = rest[0];
    if (name || number) {
      output.push(name ? { name } : { number: Number(number) });
      wantsValue = false;
    } else if (wantsValue && sign === "(") waiting.push(sign);
    else if (!wantsValue && sign === ")") {
      while (waiting.length && waiting.at(-1) !== "(") output.push({ sign: waiting.pop() });
      if (waiting.pop() !== "(") return null;
    } else if (!wantsValue && BINDS[sign]) {
      while (BINDS[waiting.at(-1)] >= BINDS[sign]) output.push({ sign: waiting.pop() });
      waiting.push(sign);
      wantsValue = true;
    } else return null;
    rest = rest.slice((name || number || sign).length).trimStart();
  }
  while (waiting.length) output.push({ sign: waiting.pop() });
  return wantsValue || output.some(({ sign }) => sign === "(") ? null : output;
}

// The values of a formula at the places of its sparsest metric; its last one where all metrics came last together.
export function evaluate(parts, series) {
  const used = parts.filter(({ name }) => name).map(({ name }) => series.get(name));
  if (!used.length || used.some((data) => !data)) return null;
  const base = used.reduce((least, data) => (data.x.length < least.x.length ? data : least));
  const places = new Map(used.map((data) => [data, 0]));
  const valueAt = (data, x) => {
    let place = places.get(data);
    while (place + 1 < data.x.length && data.x[place + 1] <= x) place += 1;
    places.set(data, place);
    return data.y[place];
  };
  const y = base.x.map((x) => reckon(parts, (name) => valueAt(series.get(name), x)));
  const isTogether = used.every(({ last }) => last && last.x === used[0].last.x);
  const last = isTogether && { x: used[0].last.x, y: reckon(parts, (name) => series.get(name).last.y), nonfinite: null };
  const n = y.map((value) => (value === null ? 0 : 1));
  return { x: base.x, y, n, bucket: base.bucket, total: y.length, nonfinite: [], ...(last ? { last } : {}) };
}

function reckon(parts, valueOf) {
  const stack = [];
  for (const { name, number, sign } of parts) {
    if (!sign) stack.push(name ? (valueOf(name) ?? NaN) : number);
    else {
      const two = stack.pop();
      stack.push(RUN[sign](stack.pop(), two));
    }
  }
  return Number.isFinite(stack[0]) ? stack[0] : null;
}
