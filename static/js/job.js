// A job's page: head, charts and log, live; cancel can be undone for five seconds.
import { post, soon } from "./actions.js";
import { watchDevices } from "./device-charts.js";
import { Log } from "./log.js";
import { Metrics } from "./metrics.js";
import { refresh } from "./rows.js";
import { startShell } from "./shell.js";
import { live } from "./socket.js";
import { clockElement, value } from "./words.js";

const page = document.getElementById("job");
const data = JSON.parse(document.getElementById("job-data").textContent);

startShell();
const metrics = new Metrics(data.id, data.seams);
metrics.start();
watchDevices(page.dataset.history, data.final);
let attempt = data.attempt;
if (data.log) new Log(data.id).open();
live.subscribe(`job:${data.id}`, (frame) => frame.data?.state && showJob(frame.data), { sleeps: false });

function showJob(row) {
  const head = document.getElementById("job-head");
  if (row.attempt !== attempt && !data.final) return location.reload(); // another log, other devices
  if (row.shape !== page.dataset.shape) {
    page.dataset.shape = row.shape;
    refresh("job-head", "job-side");
  }
  const done = row.progress !== null ? `${row.progress}% ` : `${row.state}: `;
  document.title = `${row.state === "running" ? done : `${row.state}: `}${row.name}`;
  figure(head, "[data-progress]", row.progress === null ? [] : [bold(`${row.progress} %`), " "], row.step === null ? "" : `step ${value(row.step)}${row.total_steps ? ` of ${value(row.total_steps)}` : ""}`);
  figure(head, "[data-loss]", row.loss ? [`${row.loss_name} `, bold(row.loss)] : [], "");
  figure(head, "[data-rate]", [], row.rate);
  figure(head, "[data-eta]", row.eta ? ["done about ", clockElement(row.eta)] : [], "");
  const bar = document.getElementById("progress");
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
  return Object.assign(document.createElement("b"), { textContent: text });
}

page.addEventListener("submit", (event) => {
  const form = event.target;
  const action = form.dataset.action;
  if (!action || action === "retry" || action === "resume") return; // these lead to another page
  event.preventDefault();
  if (action === "cancel") cancelSoon(form);
  else act(form);
});

function cancelSoon(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  soon(`Cancelling ${page.dataset.name} in 5 s.`, () => act(form), () => { button.disabled = false; });
}

async function act(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  if (await post(form.action, new FormData(form))) refresh("job-head", "job-side");
  button.disabled = false;
}
