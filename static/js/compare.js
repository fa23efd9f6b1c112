// Jobs over each other: one chart for each name they report, a line for each job; the address keeps the view.
import { copyTable, toast } from "./actions.js";
import { addPoint } from "./chart-data.js";
import { Chart } from "./charts.js";
import { by, keepInAddress } from "./dom.js";
import { grouped, isRate } from "./metrics.js";
import { live } from "./socket.js";

const MOST_CHARTS = 12;
const COLOURS = 8;
const jobs = JSON.parse(by("compare-data").textContent);
const view = by("view");
const charts = new Map();
const state = { x: view.elements.x.value, smooth: Number(view.elements.smooth.value), log: false };

readAll();
for (const job of jobs) if (!job.final) follow(job);

async function readAll() {
  await Promise.all(jobs.map(read));
  draw();
}

async function read(job) {
  const answer = await fetch(`/api/v1/jobs/${job.id}/metrics?x=${state.x === "step" ? "step" : "time"}`);
  if (!answer.ok) {
    toast(`The numbers of ${job.name} could not be read (${answer.status}).`, { bad: true });
    return;
  }
  const { series, seq } = await answer.json();
  job.series = series;
  job.seq = seq;
  job.start = Math.min(...Object.values(series).map((data) => data.x[0] ?? Infinity));
}

async function follow(job) {
  live.subscribe(`metrics:${job.id}`, async (frame) => {
    if (frame.type === "gap") {
      await read(job);
      live.resume(`metrics:${job.id}`, job.seq);
    } else if (frame.type === "points" && job.series && frame.seq > job.seq) {
      for (const [name, points] of Object.entries(frame.data)) append(job, name, points);
    }
    draw();
  });
}

function append(job, name, points) {
  const data = (job.series[name] ??= { x: [], y: [], y_min: [], y_max: [], n: [], bucket: 1, total: 0, nonfinite: [] });
  const x = state.x === "step" ? points.x : points.t;
  x.forEach((at, index) => addPoint(data, at, points.y[index], { low: points.y_min?.[index] ?? points.y[index], high: points.y_max?.[index] ?? points.y[index], n: points.n?.[index] ?? 1 }));
}

function draw() {
  const names = grouped([...new Set(jobs.flatMap((job) => Object.keys(job.series ?? {})))]).flat();
  by("charts-empty").hidden = names.length > 0;
  for (const name of names.slice(0, MOST_CHARTS)) {
    const chart = charts.get(name) ?? new Chart(by("charts"), { title: name, fromZero: isRate(name) });
    charts.set(name, chart);
    Object.assign(chart, { xKind: state.x, logScale: state.log, smooth: state.smooth });
    chart.show(jobs.flatMap((job, at) => (job.series?.[name] ? [{ label: job.letter, colour: at < COLOURS ? `job-${at + 1}` : "edge", data: shifted(job) ? since(job, job.series[name]) : job.series[name] }] : [])));
  }
}

function shifted(job) {
  return state.x === "relative" && Number.isFinite(job.start);
}

function since(job, data) {
  const minutes = (second) => (second - job.start) / 60;
  return { ...data, x: data.x.map(minutes), nonfinite: data.nonfinite.map(([x, kind]) => [minutes(x), kind]) };
}

view.addEventListener("input", () => {
  const before = state.x;
  state.x = view.elements.x.value;
  state.smooth = Number(view.elements.smooth.value);
  state.log = by("chart-log").checked;
  keepInAddress("x", state.x === "step" ? "" : state.x);
  keepInAddress("smooth", state.smooth || "");
  if (before === state.x || (before !== "step" && state.x !== "step")) draw();
  else readAll();
});

const onlyDiffering = by("only-differing");
onlyDiffering.addEventListener("change", () => {
  by("comparison").classList.toggle("only-differing", onlyDiffering.checked);
  keepInAddress("all", onlyDiffering.checked ? "" : "1");
});

const copy = by("copy-markdown");
copy.hidden = !navigator.clipboard;
copy.addEventListener("click", () => {
  const rows = [...document.querySelectorAll("#comparison tbody tr")].filter((row) => row.offsetParent !== null);
  copyTable([["", ...jobs.map((job) => `${job.letter} ${job.name}`)], ...rows.map((row) => [...row.cells].map((cell) => cell.innerText))]);
});
