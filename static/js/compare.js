// Jobs over each other: one chart for each name they report, a line for each job; the address keeps the view.
import { copyTable, toast } from "./actions.js";
import { Chart } from "./charts.js";
import { countIn, lastOf, numberWords } from "./chart-words.js";
import { by, keepInAddress, make, say } from "./dom.js";
import { Numbers, firstOf, isOnePoint, isRate } from "./numbers.js";
import { live } from "./socket.js";
import { value } from "./words.js";

const FEW = 8; // lines whose names stand at their ends
const jobs = JSON.parse(by("compare-data").textContent);
const { x, smooth, log, baseline } = by("view").elements;
const charts = new Map();
const address = new URLSearchParams(location.search);
const hidden = new Set(address.get("hidden")); // letters of jobs
let zoomed = address.get("zoom")?.split("_").map(Number) ?? null; // the same on all charts
if (zoomed?.length !== 2 || !zoomed.every(Number.isFinite)) zoomed = null;
let focus = null; // the letter of the line that is looked at, of many
const first = firstOf(by("charts"), draw);

// Jobs that count different things share an axis of steps only by name.
if (jobs.every(({ unit }) => unit === jobs[0].unit)) {
  countIn(jobs[0]?.unit);
  if (jobs.length) x.options[0].textContent = say(jobs[0].unit);
}
for (const job of jobs) job.numbers = new Numbers(job.id);
readAll();
for (const job of jobs) if (!job.final) follow(job);

async function readAll() {
  await Promise.all(jobs.map(read));
  if (zoomed) await Promise.all(jobs.map(readWindow));
  draw();
}

async function read(job) {
  const answer = await job.numbers.ask(x.value);
  if (!answer.ok) {
    const values = { name: job.name, status: answer.status };
    return toast(say("The numbers of {name} could not be read ({status}).", values), { bad: true });
  }
  const told = await answer.json();
  job.seq = told.seq;
  return job.numbers.take(told);
}

async function readWindow(job) {
  const asked = zoomed;
  const answer = await job.numbers.ask(x.value, job.numbers.fromView(x.value, asked)).catch(() => null);
  if (answer?.ok && asked === zoomed) job.part = (await answer.json()).series;
}

function follow(job) {
  const topic = `metrics:${job.id}`;
  live.subscribe(topic, async (frame) => {
    if (frame.type === "gap") {
      await read(job);
      live.resume(topic, job.seq);
    } else if (frame.type === "points" && frame.seq > job.seq && job.numbers.add(x.value, frame.data)) await read(job);
    draw();
  });
}

function draw() {
  const names = [...new Set(jobs.flatMap(({ numbers }) => numbers.charts.flat()))];
  const values = names.filter(
    (name) => !charts.has(name) && jobs.every(({ numbers }) => isOnePoint(numbers.series.get(name))),
  );
  const isRead = jobs.every(({ numbers }) => numbers.isRead);
  by("charts-empty").hidden = names.length > 0 || !isRead;
  if (names.length || isRead) for (const one of document.querySelectorAll(".chart.is-waiting")) one.remove();
  showValues(values);
  for (const name of first(names.filter((name) => !values.includes(name)))) {
    const chart = charts.get(name) ?? makeChart(name);
    Object.assign(chart, { xKind: x.value, logScale: log.checked, smooth: Number(smooth.value) });
    const shown = jobs.filter(({ letter }) => !hidden.has(letter));
    chart.show(shown.map((job) => line(job, name, shown.length)).filter(({ data }) => data));
  }
}

// What no job reported more than once: a row of values instead of a chart.
function showValues(names) {
  const table = by("charts-values");
  table.hidden = !names.length;
  const cell = ({ numbers }, name) => {
    const last = numbers.series.has(name) ? lastOf(numbers.series.get(name)) : null;
    return make("td", { className: "number", textContent: last ? numberWords({ format: value, unit: "" }, last) : "" });
  };
  table.tBodies[0].replaceChildren(
    ...names.map((name) =>
      make("tr", {}, make("th", { scope: "row", textContent: name }), ...jobs.map((job) => cell(job, name))),
    ),
  );
}

function makeChart(name) {
  const chart = new Chart(by("charts"), { title: name, fromZero: isRate(name), onWindow: zoom });
  charts.set(name, chart);
  chart.look(zoomed);
  return chart;
}

function line({ numbers, part, letter, label, colour: slot }, name, count) {
  const colour = letter === focus ? "text" : slot ? `job-${slot}` : "edge";
  const end = count <= FEW || letter === focus ? label : "";
  return { label, end, colour, data: numbers.toView(x.value, (zoomed && part?.[name]) || numbers.series.get(name)) };
}

async function zoom(ends) {
  zoomed = ends;
  for (const job of jobs) job.part = null;
  keepInAddress("zoom", ends?.map((end) => Number(end.toPrecision(8))).join("_"));
  for (const chart of charts.values()) chart.look(ends);
  if (ends) await Promise.all(jobs.map(readWindow));
  draw();
}

by("view").addEventListener("input", ({ target }) => {
  if (target === baseline) {
    keepInAddress("baseline", baseline.value);
    return location.reload();
  }
  keepInAddress("smooth", Number(smooth.value) || "");
  keepInAddress("log", log.checked && "1");
  if (target !== x) return draw();
  keepInAddress("x", x.value === "step" ? "" : x.value);
  for (const job of jobs) job.numbers.take();
  zoom(null);
  return readAll();
});

// A click hides a line or shows it again; of many, the one that is pointed at has a colour.
const legend = by("legend");
legend.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button) return;
  const { letter } = button.dataset;
  button.ariaPressed = hidden.delete(letter);
  if (button.ariaPressed === "false") hidden.add(letter);
  keepInAddress("hidden", [...hidden].sort().join(""));
  draw();
});
for (const event of jobs.length > FEW ? ["pointerover", "focusin"] : []) {
  legend.addEventListener(event, ({ target }) => {
    focus = target.closest("button")?.dataset.letter;
    draw();
  });
}

by("axes")?.addEventListener("change", ({ currentTarget }) => currentTarget.requestSubmit());

const onlyDiffering = by("only-differing");
onlyDiffering.addEventListener("change", () => {
  by("comparison").classList.toggle("only-differing", onlyDiffering.checked);
  keepInAddress("all", onlyDiffering.checked ? "" : "1");
});

by("copy-markdown").addEventListener("click", () => {
  const rows = [...document.querySelectorAll("#comparison tbody tr")].filter((row) => row.offsetParent !== null);
  copyTable([
    ["", ...jobs.map((job) => job.label)],
    ...rows.map((row) => [...row.cells].map((cell) => cell.innerText)),
  ]);
});
