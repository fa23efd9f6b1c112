// A job's page: head, charts and log, live; cancel can be undone for five seconds.
import { post, soon } from "./actions.js";
import { addPoint } from "./chart-data.js";
import { Chart } from "./charts.js";
import { by, make } from "./dom.js";
import { Log } from "./log.js";
import { Metrics } from "./metrics.js";
import { refresh } from "./rows.js";
import { sawReading } from "./shell.js";
import { live } from "./socket.js";
import { clockElement, value } from "./words.js";

const LEAD_ON = new Set(["retry", "resume", "lighter"]); // to the page of the job that they make
const page = by("job");
const data = JSON.parse(by("job-data").textContent);

const metrics = new Metrics(data.id, data.seams);
metrics.start();
watchDevices(page.dataset.history, data.final);
let attempt = data.attempt;
if (data.log) new Log(data.id).open();
live.subscribe(`job:${data.id}`, (frame) => frame.data?.state && showJob(frame.data), { sleeps: false });

function showJob(row) {
  const head = by("job-head");
  if (row.attempt !== attempt && !data.final) return location.reload(); // another log, other devices
  if (row.shape !== page.dataset.shape) {
    page.dataset.shape = row.shape;
    refresh("job-head", "job-side");
  }
  document.title =
    row.state === "running" && row.progress !== null ? `${row.progress}% ${row.name}` : `${row.state}: ${row.name}`;
  figure(
    head,
    "[data-progress]",
    row.progress === null ? [] : [bold(`${row.progress} %`), " "],
    row.step === null ? "" : `${row.unit} ${value(row.step)}${row.total_steps ? " of " + value(row.total_steps) : ""}`,
  );
  figure(head, "[data-loss]", row.loss ? [`${row.loss_name} `, bold(row.loss)] : [], "");
  figure(head, "[data-rate]", [], row.rate);
  figure(head, "[data-eta]", row.eta ? ["done about ", clockElement(row.eta)] : [], "");
  const bar = by("progress");
  if (bar && row.progress !== null) {
    bar.style.width = `${row.progress}%`;
    bar.parentElement.setAttribute("aria-valuenow", row.progress - (row.progress % 5));
  }
  return undefined;
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
    `Cancelling ${page.dataset.name} in 5 s.`,
    () => act(form),
    () => {
      button.disabled = false;
    },
  );
}

async function act(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  if (await post(form.action, new FormData(form))) refresh("job-head", "job-side");
  button.disabled = false;
}

// Memory and utilisation of the job's devices over its time.
async function watchDevices(address, isFinal) {
  const answer = await fetch(address);
  if (!answer.ok) return;
  const { devices } = await answer.json();
  if (!devices.length) {
    if (!isFinal) live.subscribe("devices", (frame) => frame.data && sawReading(frame.data.t));
    return;
  }
  const section = by("devices-section");
  const box = by("device-charts");
  section.hidden = false;
  box.replaceChildren();
  const memory = new Chart(box, {
    title: "memory in use",
    csv: `${address}.csv`,
    unit: " GiB",
    fromZero: true,
    format: (gib) => gib.toFixed(gib < 1 ? 2 : 1),
  });
  const use = new Chart(box, {
    title: "utilisation",
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
