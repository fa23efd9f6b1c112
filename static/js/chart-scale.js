// How y is drawn: as it is, logarithmic, or symmetric-logarithmic where values are not positive; with or without outliers.
const DEEPEST = 1e6; // parts of the largest value below which symmetric-log is linear
const [LOW_SHARE, HIGH_SHARE] = [0.01, 0.99];
const ROOM = 0.05;

// {map, type, axis, notes}: map takes a value to what is drawn, axis goes into the layout, notes say what was done.
export function scaleOf(series, { logScale, clips, fromZero }, format) {
  const scale = logScale ? logarithmic(series, format) : { map: null, type: "linear", axis: { rangemode: fromZero ? "tozero" : "normal" }, notes: [] };
  if (clips) clip(scale, series);
  return scale;
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
    notes: [`not all positive: symmetric log, linear within ±${format(linear)}`],
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
  for (const { data } of series) data.y.forEach((y, at) => { if (y !== null && ((data.y_min ?? data.y)[at] < low || (data.y_max ?? data.y)[at] > high)) outside += 1; });
  const place = scale.type === "log" ? Math.log10 : scale.map ?? ((y) => y);
  const room = (place(high) - place(low)) * ROOM || Math.abs(place(high)) * ROOM || 1;
  scale.axis.range = [place(low) - room, place(high) + room];
  scale.notes.push(outside ? `${outside.toLocaleString("en")} of ${all.length.toLocaleString("en")} reach outside the 1st to 99th percentile shown` : "none outside the 1st to 99th percentile");
}
