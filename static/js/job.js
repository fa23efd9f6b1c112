// A job's page: head, charts and log, live; cancel can be undone for five seconds.
import { post, soon } from "./actions.js";
import { addPoint } from "./chart-data.js";
import { countIn } from "./chart-words.js";
import { Chart } from "./charts.js";
import { onCursor } from "./cursor.js";
import { by, icon, make, readPage, say, sayState } from "./dom.js";
import { Log } from "./log.js";
import { Metrics } from "./metrics.js";
import { onRefresh, refresh } from "./rows.js";
import { sawReading } from "./shell.js";
import { live } from "./socket.js";
import { clockElement, value } from "./words.js";

// What the server draws again when more than numbers changed.
const PARTS = ["job-head", "job-now", "system-parts", "files-parts", "code-parts", "history-parts"];
const LEAD_ON = new Set(["retry", "resume", "lighter"]); // to the page of the job that they make
const page = by("job");
const data = JSON.parse(by("job-data").textContent);

countIn(page.dataset.unit);
const metrics = new Metrics(data.id, data.seams, data);
metrics.start();
watchDevices(page.dataset.history, data.final);
let attempt = data.attempt;
const log = data.log && new Log(data.id, whereIs);
log?.open();
onCursor((kind, x, source) => source === "chart" && log?.point(x === null ? null : metrics.momentOf(kind, x)));
explain();
live.subscribe(`job:${data.id}`, receive, { sleeps: false });

// The places: all are on the page, and the address says which one is shown.
page.addEventListener("click", (event) => {
  const link = event.target.closest(".job-places a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (link.pathname !== location.pathname) history.pushState(null, "", link.pathname + location.search);
  showPlace();
});
addEventListener("popstate", () => showPlace());
addEventListener("hashchange", () => showLinked());
onRefresh(() => {
  headHeight.observe(by("job-head"));
  showPlace();
  explain();
});
document.addEventListener("click", ({ target }) => {
  if (target.closest("#job-menu :is(a, button)")) by("job-menu").open = false;
});
const headHeight = new ResizeObserver(([{ target }]) =>
  page.style.setProperty("--head", `${target.getBoundingClientRect().height}px`),
);
headHeight.observe(by("job-head"));
showLinked();

function receive(frame) {
  if (frame.type === "error") showGone();
  else if (frame.data?.state) showJob(frame.data);
}

// The job was deleted, or the right to see it was taken away: what is shown stays, and says what it is.
function showGone() {
  if (by("job-gone")) return;
  const textContent = say(
    "This job can no longer be read: it was deleted, or your right to see it was taken away. The page shows how it was.",
  );
  page.prepend(make("p", { id: "job-gone", className: "band is-bad", role: "alert" }, icon("warning"), make("span", { textContent })));
}

function showPlace() {
  const links = [...page.querySelectorAll(".job-places a")];
  const current = links.find(({ pathname }) => pathname === location.pathname);
  const shown = current?.dataset.place ?? page.dataset.first;
  by("job-body").dataset.place = shown;
  by("job-now").hidden = shown !== page.dataset.first;
  for (const link of links) {
    if (link.dataset.place === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (shown === "code" && !by("source").querySelector(".source, .code-files")) refresh("source");
}

// A link to lines of the log leads to the log, wherever it was opened.
function showLinked() {
  if (!/^#L\d/.test(location.hash) || by("log")?.clientHeight) return;
  history.replaceState(null, "", page.querySelector("[data-place=log]").pathname + location.hash);
  showPlace();
}

async function whereIs(query) {
  const answer = await fetch(`${page.dataset.logPlace}?${new URLSearchParams(query)}`).catch(() => null);
  return answer?.ok ? answer.json() : null;
}

// What would start the job now, asked of the scheduler once the page is there.
async function explain() {
  const address = by("job-now").querySelector("[data-explain]")?.dataset.explain;
  if (!address) return;
  const answer = await fetch(address).catch(() => null);
  if (!answer?.ok) {
    by("job-explained").textContent = say("The scheduler could not be asked; reload to ask again.");
    return;
  }
  const { body } = await readPage(answer);
  by("job-explained")?.replaceChildren(...body.childNodes);
}

function showJob(row) {
  const head = by("job-head");
  if (row.attempt !== attempt && !data.final) return location.reload(); // another log, other devices
  if (row.shape !== page.dataset.shape) {
    page.dataset.shape = row.shape;
    refresh(...PARTS);
  }
  document.title =
    row.state === "running" && row.progress !== null ? `${row.progress}% ${row.name}` : `${sayState(row.state)}: ${row.name}`;
  figure(
    head,
    "[data-progress]",
    row.progress === null ? [] : [bold(`${row.progress} %`), " "],
    row.step === null ? "" : stepWords(row),
  );
  countIn(row.unit);
  by("chart-x").options[0].textContent = say(row.unit);
  figure(head, "[data-loss]", row.loss ? [`${row.loss_name} `, bold(row.loss)] : [], "");
  figure(head, "[data-rate]", [], row.rate);
  figure(head, "[data-eta]", row.eta ? [`${say("done about")} `, clockElement(row.eta)] : [], "");
  const bar = by("progress");
  if (bar && row.progress !== null) {
    bar.style.width = `${row.progress}%`;
    bar.parentElement.setAttribute("aria-valuenow", row.progress - (row.progress % 5));
  }
  return undefined;
}

function stepWords({ unit, step, total_steps: total }) {
  if (!total) return `${say(unit)} ${value(step)}`;
  return say("{unit} {step} of {total}", { unit: say(unit), step: value(step), total: value(total) });
}

function figure(head, selector, parts, text) {
  head.querySelector(selector)?.replaceChildren(...parts, text);
}

function bold(text) {
  return make("b", { textContent: text });
}

page.addEventListener("submit", (event) => {
  const form = event.target;
  const action = form.dataset.action;
  if (!action || LEAD_ON.has(action)) return;
  event.preventDefault();
  if (action === "cancel") cancelSoon(form);
  else act(form);
});

function cancelSoon(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  soon(
    say("Cancelling {name} in 5 s.", { name: page.dataset.name }),
    () => act(form),
    () => {
      button.disabled = false;
    },
  );
}

async function act(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  if (await post(form.action, new FormData(form))) refresh(...PARTS);
  button.disabled = false;
}

// Memory and utilisation of the job's devices over its time.
async function watchDevices(address, isFinal) {
  const answer = await fetch(address).catch(() => null);
  const { devices } = answer?.ok ? await answer.json() : { devices: [] };
  if (!devices.length) {
    if (data.attempt)
      by("devices-empty").textContent = answer?.ok
        ? say("No readings of its devices were kept.")
        : say("The readings could not be read; reload to try again.");
    if (!isFinal) live.subscribe("devices", (frame) => frame.data && sawReading(frame.data.t));
    return;
  }
  const box = by("device-charts");
  box.replaceChildren();
  const memory = new Chart(box, {
    title: say("memory in use"),
    csv: `${address}.csv`,
    unit: " GiB",
    fromZero: true,
    format: (gib) => gib.toFixed(gib < 1 ? 2 : 1),
  });
  const use = new Chart(box, {
    title: say("utilisation"),
    csv: `${address}.csv`,
    unit: " %",
    fromZero: true,
    format: (percent) => Math.round(percent),
  });
  const byId = new Map(
    devices.map((device) => [
      device.id,
      { ...device, memory: device.series.memory_gib ?? nothing(), use: device.series.utilization_percent ?? nothing() },
    ]),
  );
  const draw = () => {
    const all = [...byId.values()].slice(0, 8);
    for (const [chart, name] of [
      [memory, "memory"],
      [use, "use"],
    ]) {
      chart.xKind = "time";
      const filled = all.filter((device) => device[name].x.length);
      chart.figure.hidden = !filled.length;
      chart.show(
        filled.map((device, index) => ({ label: device.label, colour: `job-${index + 1}`, data: device[name] })),
      );
    }
  };
  draw();
  if (isFinal) return;
  live.subscribe("devices", (frame) => {
    if (!frame.data) return;
    sawReading(frame.data.t);
    for (const [id, percent, used] of frame.data.readings) {
      const device = byId.get(id);
      if (!device) continue;
      addPoint(device.memory, frame.data.t, used === null ? null : used / 1024 ** 3);
      if (percent !== null) addPoint(device.use, frame.data.t, percent);
    }
    draw();
  });
}

function nothing() {
  return { x: [], y: [], y_min: [], y_max: [], n: [], bucket: 1, total: 0 };
}
