// The page of a sweep: axes that filter everything else, and news every few seconds while it runs.
import { by, make, say, sayState, write } from "./dom.js";
import { onRefresh, refresh } from "./rows.js";
import { colour, onThemeChange } from "./shell.js";
import { Plot, placeOn, ticksOf, valueOn } from "./sweep-plots.js";
import { value } from "./words.js";

const LOOK_AGAIN_MS = 2500;
const MOST_COMPARED = 24;
const LEAST_BRUSH = 0.02;
const AXIS_PX = 96; // the least room of an axis
const { picture: pictureAddress, curves: curvesAddress, what: kind = "trial" } = by("sweep").dataset;
const [what, many] = kind === "job" ? [say("job"), say("jobs")] : [say("trial"), say("trials")];
const curves = new Map(); // by number: the count of points that it was read with, and the points
const brushes = new Map(); // by the name of an axis: from, to, between 0 and 1
const plots = [];
let picture = null;
let axes = []; // the settings, then the metric
let places = new Map(); // by number: where it crosses each axis
let ranked = []; // the numbers that have a value, best first
let trials = new Map(); // by number
let ranks = new Map(); // by number, 0 is the best
let drawn = null; // what curves and slices need of all trials, until there are news
let chosen = new Set();
let focus = null;
let frame = 0;
let order = []; // of drawing: the best on top

function drawSoon() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    order = inOrder();
    for (const plot of plots) plot.show();
  });
}

const acts = {
  onFocus(number) {
    if (number === focus) return;
    focus = number;
    write(by("sweep-said"), number === null ? words() : describe(byNumber(number)));
    drawSoon();
  },
  onOpen(number) {
    if (number !== null) location.href = `/jobs/${byNumber(number).job}`;
  },
};

const byNumber = (number) => trials.get(number);

function describe(trial) {
  const settings = picture.settings.map(({ name }, at) => [name, trial.settings[at]]).filter(([, each]) => each !== null);
  const reached =
    trial.value === null
      ? say("no value yet")
      : say("{value} at step {step}", { value: value(trial.value), step: value(trial.rung) });
  const texts = settings.map(([name, each]) => `${name} ${typeof each === "number" ? value(each) : each}`);
  const head = say("{what} {number} ({state}): {reached}", { ...trial, what, state: sayState(trial.state), reached });
  return [head, ...texts].join(", ");
}

// What is chosen

function words() {
  const ranges = axes.filter(({ name }) => brushes.has(name)).map((axis) => `${axis.name} ${range(axis)}`);
  if (!ranges.length) return say("Point at a line to see its {what}; click to open it.", { what });
  const values = { n: chosen.size, all: picture.trials.length, many, ranges: ranges.join(", ") };
  return say("{n} of {all} {many}: {ranges}", values);
}

function range(axis) {
  const [from, to] = brushes.get(axis.name);
  if (!axis.choices) return say("{from} to {to}", { from: value(valueOn(axis, from)), to: value(valueOn(axis, to)) });
  return axis.choices.filter((each) => isWithin(placeOn(axis, each), [from, to])).join(` ${say("or")} `) || say("none");
}

const isWithin = (place, [from, to]) => place !== null && place >= from - 1e-9 && place <= to + 1e-9;

function choose() {
  chosen = new Set(
    picture.trials
      .map(({ number }) => number)
      .filter((number) =>
        axes.every(({ name }, at) => !brushes.has(name) || isWithin(places.get(number)[at], brushes.get(name))),
      ),
  );
  by("clear").hidden = !brushes.size;
  write(by("sweep-said"), words());
  showTable();
  drawSoon();
}

function showTable() {
  const isFiltered = brushes.size > 0;
  for (const row of by("trials-table").tBodies[0].rows) {
    const isOut = isFiltered && !chosen.has(Number(row.dataset.trial));
    if (row.hidden !== isOut) row.hidden = isOut;
  }
  const all = picture.trials.length;
  write(by("chosen"), isFiltered ? say("{n} of {all}", { n: chosen.size, all }) : String(all));
  if (!isFiltered) return;
  const jobs = ranked.filter((number) => chosen.has(number)).slice(0, MOST_COMPARED);
  by("compare").href = `/compare?jobs=${jobs.map((number) => byNumber(number).job).join(",")}`;
  write(by("compare"), say("Compare these"));
}

// The axes: elements over the canvas, so that keys and fingers reach them

function makeAxes() {
  const box = by("parallel");
  for (const old of box.querySelectorAll(".axis")) old.remove();
  box.style.minWidth = `${axes.length * AXIS_PX}px`;
  axes.forEach((axis, at) => {
    const mark = make("i", { hidden: true });
    const element = make("button", { type: "button", className: "axis", ariaLabel: say("Filter by {name}", axis) }, mark);
    // As axisX, of any width: to make axes anew where the width changes would end a drag over one of them.
    element.style.left = `calc(56px + ${part(at)} * (100% - 112px))`;
    element.addEventListener("pointerdown", (event) => drag(event, axis, element));
    element.addEventListener("keydown", (event) => press(event, axis));
    axis.show = () => {
      const brush = brushes.get(axis.name);
      mark.hidden = !brush;
      if (brush) Object.assign(mark.style, { bottom: `${brush[0] * 100}%`, height: `${(brush[1] - brush[0]) * 100}%` });
    };
    axis.show();
    box.append(element);
  });
}

const part = (at) => at / Math.max(1, axes.length - 1);
const axisX = (width, at) => 56 + part(at) * (width - 112);

function brush(axis, ends) {
  if (ends) brushes.set(axis.name, ends);
  else brushes.delete(axis.name);
  axis.show();
  choose();
}

function drag(event, axis, element) {
  const at = ({ clientY }) => {
    const { bottom, height } = element.getBoundingClientRect(); // each time: a line that breaks above it moves it
    return clamped((bottom - clientY) / height);
  };
  const began = at(event);
  element.setPointerCapture(event.pointerId);
  const move = (moved) => {
    const ends = [began, at(moved)].sort((one, other) => one - other);
    brush(axis, ends[1] - ends[0] > LEAST_BRUSH ? ends : null);
  };
  element.addEventListener("pointermove", move);
  element.addEventListener(
    "lostpointercapture",
    (ended) => {
      element.removeEventListener("pointermove", move);
      if (Math.abs(at(ended) - began) <= LEAST_BRUSH) brush(axis, null);
    },
    { once: true },
  );
}

// Up and down move what is filtered, left and right make it narrower and wider.
function press(event, axis) {
  if (event.key === "Escape" && brushes.has(axis.name)) return brush(axis, null);
  const [up, wider] = { ArrowUp: [0.1, 0], ArrowDown: [-0.1, 0], ArrowLeft: [0, -0.1], ArrowRight: [0, 0.1] }[event.key] ?? [];
  if (up === undefined) return;
  event.preventDefault();
  const [from, to] = brushes.get(axis.name) ?? (up > 0 ? [0.4, 0.9] : [0, 0.5]);
  const width = Math.min(1, Math.max(0.1, to - from + wider));
  const low = Math.min(1 - width, Math.max(0, from + up));
  brush(axis, [low, low + width]);
}

by("clear")?.addEventListener("click", () => {
  brushes.clear();
  for (const axis of axes) axis.show();
  choose();
});

// How trials are drawn: what is filtered out faint, the best one in a colour of its own

function inOrder() {
  const back = picture.trials.filter(({ number }) => !chosen.has(number));
  const front = [...ranked].reverse().filter((number) => chosen.has(number)).map(byNumber);
  const without = picture.trials.filter(({ number, value: best }) => best === null && chosen.has(number));
  return [...back, ...without, ...front, ...(focus === null ? [] : [byNumber(focus)])];
}

function styleOf({ number, value: best, state }) {
  if (number === focus) return [colour("text"), 2.5];
  if (!chosen.has(number)) return [colour("line"), 1];
  if (number === ranked[0]) return [colour("job-2"), 2.5];
  if (best === null) return [colour(state === "failed" ? "bad" : "edge", 0.5), 1];
  return [colour("accent", Math.min(0.5, 0.12 + 4 / ranked.length) + 0.4 * (1 - ranks.get(number) / ranked.length) ** 3), 1];
}

function drawParallel(plot) {
  const { top, bottom } = plot.inner;
  for (const trial of order) {
    const points = places.get(trial.number).map((place, at) => place !== null && [axisX(plot.width, at), plot.y(place)]);
    plot.line(chosen.has(trial.number) ? trial.number : null, points, ...styleOf(trial));
  }
  axes.forEach((axis, at) => {
    const x = axisX(plot.width, at);
    plot.line(null, [[x, top], [x, bottom]], colour("edge"));
    plot.text(axis.name.length > 16 ? `${axis.name.slice(0, 15)}…` : axis.name, x, 10, "center", "text");
    for (const [place, text] of ticksOf(axis)) {
      plot.pen.fillStyle = colour("surface", 0.8);
      plot.pen.fillRect(x + 4, plot.y(place) - 7, plot.pen.measureText(text).width + 4, 14);
      plot.text(text, x + 6, plot.y(place), "left");
    }
  });
}

// Between the best value and that which all but the worst twentieth keep to.
function metricAxis(values) {
  const finite = values.filter(Number.isFinite).sort((one, other) => one - other);
  const cut = Math.floor(finite.length / 20);
  const [low, high] = picture.minimize ? [finite[0], finite.at(-1 - cut)] : [finite[cut], finite.at(-1)];
  return { name: picture.metric, low: low ?? 0, high: high ?? 1 };
}

function pointsOf({ number, reports }) {
  const [x, y] = curves.get(number)?.points ?? [];
  return x?.length ? x.map((step, at) => [step, y[at]]) : reports;
}

// Made once for all frames until there are news: hundreds of curves have tens of thousands of points.
function prepare() {
  const all = new Map(picture.trials.map((trial) => [trial.number, pointsOf(trial)]));
  const points = [...all.values()].flat();
  const isLog = picture.rungs.length > 1;
  const across = { name: say("step"), type: "int", low: isLog ? Infinity : 0, high: picture.rungs.at(-1) ?? 1, log: isLog };
  for (const [step] of points) {
    across.low = Math.min(across.low, Math.max(1, step));
    across.high = Math.max(across.high, step);
  }
  return { all, across, up: metricAxis(points.map(([, each]) => each ?? NaN)) };
}

function drawCurves(plot) {
  const { all, across, up } = drawn;
  if (![...all.values()].some((points) => points.length))
    return plot.text(say("No {what} has reported yet.", { what }), plot.width / 2, plot.height / 2);
  plot.frame(across, up);
  const x = (step) => plot.x(placeOn(across, Math.max(across.low, step)));
  for (const rung of picture.rungs) {
    plot.pen.setLineDash([3, 3]);
    plot.line(null, [[x(rung), plot.inner.top], [x(rung), plot.inner.bottom]], colour("edge"));
    plot.pen.setLineDash([]);
  }
  plot.inside();
  for (const trial of order) {
    const points = all.get(trial.number).map(([step, each]) => each !== null && [x(step), plot.y(placeOn(up, each))]);
    const [style, width] = styleOf(trial);
    plot.line(chosen.has(trial.number) ? trial.number : null, points, style, width);
    const end = points.findLast(Boolean);
    if (end && points.length === 1) plot.dot(null, end, style, 2);
    if (end && ["paused", "stopped", "failed"].includes(trial.state)) plot.sign(end, trial.state !== "paused", style);
  }
  return plot.pen.restore();
}

function drawGain(plot) {
  if (!picture.best.length) return plot.text(say("No value yet."), plot.width / 2, plot.height / 2);
  const across = { name: say("device-hours"), low: 0, high: picture.best.at(-1)[0] || 1 };
  const up = metricAxis(picture.best.map(([, best]) => best));
  plot.frame(across, up);
  const points = picture.best.flatMap(([hours, best], at) => {
    const x = plot.x(placeOn(across, hours));
    return at ? [[x, plot.y(placeOn(up, picture.best[at - 1][1]))], [x, plot.y(placeOn(up, best))]] : [[x, plot.y(placeOn(up, best))]];
  });
  plot.inside();
  plot.line(null, points, colour("accent"), 2);
  return plot.pen.restore();
}

// The first metric across, one of the others up; a line joins the trials that no other one beats in all metrics.
function drawFront(plot, at) {
  const across = { name: picture.metric, ...spread(picture.trials.map(({ value: each }) => each)) };
  const up = { name: picture.further[at].name, ...spread(picture.trials.map(({ further }) => further[at] ?? null)) };
  const place = ({ value: x, further }) => [plot.x(placeOn(across, x)), plot.y(placeOn(up, further[at]))];
  plot.frame(across, up);
  plot.inside();
  if (picture.further.length === 1) plot.line(null, picture.front.map((number) => place(byNumber(number))), colour("job-2"), 2);
  for (const trial of order) {
    if (trial.value === null || (trial.further[at] ?? null) === null) continue;
    const [style] = styleOf(trial);
    const isFront = picture.front.includes(trial.number);
    plot.dot(chosen.has(trial.number) ? trial.number : null, place(trial), isFront ? colour("job-2") : style, isFront ? 4 : 3);
  }
  plot.pen.restore();
}

function spread(values) {
  const finite = values.filter(Number.isFinite);
  const [low, high] = finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1];
  const pad = (high - low) / 20;
  return { low: low - pad, high: high + pad };
}

function drawSlice(plot, at) {
  const axis = axes[at];
  const up = axes.at(-1);
  plot.frame(axis, up);
  plot.inside();
  for (const trial of order) {
    const place = places.get(trial.number)[at];
    if (trial.value === null || place === null) continue;
    const [style, width] = styleOf(trial);
    plot.dot(chosen.has(trial.number) ? trial.number : null, [plot.x(place), plot.y(placeOn(up, trial.value))], style, 2 + width);
  }
  plot.pen.restore();
}

// News

function take(told) {
  const isFirst = !picture;
  picture = told;
  const sign = picture.minimize ? 1 : -1;
  const valued = picture.trials.filter(({ value: best }) => best !== null);
  trials = new Map(picture.trials.map((trial) => [trial.number, trial]));
  ranked = valued.sort((one, other) => sign * (one.value - other.value)).map(({ number }) => number);
  ranks = new Map(ranked.map((number, at) => [number, at]));
  const old = axes.map(({ name }) => name).join();
  axes = [...picture.settings.map(withChoices), metricAxis(valued.map(({ value: best }) => best))];
  places = new Map(
    picture.trials.map((trial) => [
      trial.number,
      axes.map((axis, at) => clamped(placeOn(axis, at < trial.settings.length ? trial.settings[at] : trial.value))),
    ]),
  );
  if (isFirst) makePlots();
  by("charts").hidden = by("slices").parentElement.hidden = !ranked.length;
  makeAxes();
  if (!isFirst && old !== axes.map(({ name }) => name).join()) brushes.clear();
  drawn = prepare();
  choose();
}

const clamped = (place) => (place === null ? null : Math.min(1, Math.max(0, place)));
const withChoices = (setting) => (setting.type === "bool" ? { ...setting, choices: [false, true] } : setting);

function makePlots() {
  const add = (box, label, draw) => plots.push(new Plot(box, label, draw, acts));
  add(
    by("parallel"),
    say("Parallel coordinates: a line for each trial over its settings; the table below has the numbers"),
    drawParallel,
  );
  const { metric } = picture;
  add(by("curves"), say("Curves of {metric} over steps, a line for each trial", { metric }), drawCurves);
  add(by("gain"), say("Best {metric} over device-hours", { metric }), drawGain);
  picture.further.forEach(({ name }, at) => {
    const box = by("fronts").appendChild(make("div", { className: "sweep-plot" }));
    const label = say("{name} over {metric}, a point for each trial; the table below has the numbers", { name, metric });
    add(box, label, (plot) => drawFront(plot, at));
  });
  picture.settings.forEach(({ name }, at) => {
    const box = by("slices").appendChild(make("div", { className: "sweep-plot" }));
    add(box, say("{metric} over {name}, a point for each trial", { metric, name }), (plot) => drawSlice(plot, at));
  });
}

const asking = (address, name, text) => `${address}${address.includes("?") ? "&" : "?"}${name}=${encodeURIComponent(text)}`;

async function readCurves() {
  const isOld = ({ number, seq }) => seq > (curves.get(number)?.seq ?? 0);
  const wanted = picture.trials.filter(isOld);
  if (!wanted.length) return;
  const all = wanted.length === picture.trials.length;
  const address = all ? curvesAddress : asking(curvesAddress, "trials", wanted.map(({ number }) => number).join());
  const answer = await fetch(address).catch(() => null);
  if (!answer?.ok) return;
  const told = await answer.json();
  for (const { number, seq } of wanted) curves.set(number, { seq, points: told[number] });
  drawn = prepare();
  drawSoon();
}

async function look() {
  const address = picture ? asking(pictureAddress, "seen", picture.version) : pictureAddress;
  const answer = document.hidden && picture ? null : await fetch(address).catch(() => null);
  if (answer?.status === 200) {
    const isNews = Boolean(picture);
    const told = await answer.json();
    if (isNews) refresh("sweep-head", "trials-table");
    if (told.trials.length && by("parallel")) {
      take(told);
      await readCurves();
    } else if (told.trials.length) return location.reload();
    else picture = told;
  }
  if (!picture || picture.live) setTimeout(look, LOOK_AGAIN_MS);
  return undefined;
}

onRefresh(() => picture?.trials.length && showTable());
onThemeChange(drawSoon);
look();
