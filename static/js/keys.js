// The keys of ux: loaded at the first of them.  Single keys are off while a field has focus, or in the account.
import { post, soon, undo } from "./actions.js";

const GO = { o: "/", q: "/queue", j: "/jobs", c: "/compare", d: "/datasets", b: "/benchmarks", u: "/usage", p: "/pools" };
const G_MS = 1500;
const ALL = [
  ["Ctrl K", "search or run anything"],
  ["g then o q j c d b", "go to Overview, Queue, Jobs, Compare, Datasets, Benchmarks"],
  ["c", "submit a job"],
  ["/", "search in the view"],
  ["j k", "next, previous row"],
  ["Enter", "open"],
  ["Space", "choose the row"],
  ["=", "compare what is chosen, or this job"],
  ["x", "cancel (acts after 5 s)"],
  ["u", "undo"],
  ["e", "explain why it waits"],
  ["Alt ↑ ↓", "in the queue: move your own waiting job"],
  ["n", "clone and edit"],
  ["f", "follow the log"],
  ["[ ]", "previous, next job"],
  ["l", "logarithmic y"],
  ["t", "step or time"],
  ["← → + − 0 t", "on a chart: move the cursor, zoom, back to live, table"],
  ["F6", "messages"],
  ["?", "these keys"],
];
let goUntil = 0;

const actions = {
  g: () => { goUntil = Date.now() + G_MS; },
  c: () => { location.href = "/submit"; },
  "/": () => document.querySelector("#q, #log-search, #add")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  " ": () => click(row(), "[data-choose]"),
  x: cancel,
  u: undo,
  e: () => click(row() ?? document, "[data-explain] summary, details[data-explain] > summary"),
  n: () => click(row() ?? document, "[data-clone]"),
  f: () => click(document, "#log-follow"),
  l: () => click(document, "#chart-log"),
  t: nextX,
  "=": compare,
  "[": () => follow("prev"),
  "]": () => follow("next"),
  "?": showKeys,
};

// Whether the key meant something here.
export function press(key) {
  if (Date.now() < goUntil) {
    goUntil = 0;
    if (GO[key]) location.href = GO[key];
    return Boolean(GO[key]);
  }
  const run = actions[key];
  if (!run || (key === " " && !row())) return false;
  run();
  return true;
}

function rows() {
  return [...document.querySelectorAll("tr[data-job], .tile[data-device]")].filter((one) => one.querySelector("a"));
}

function row() {
  return document.activeElement?.closest("tr[data-job]");
}

function move(by) {
  const all = rows();
  const at = all.findIndex((one) => one.contains(document.activeElement));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
  next?.querySelector("a").focus();
  next?.scrollIntoView({ block: "nearest" });
}

function click(within, selector) {
  within?.querySelector(selector)?.click();
}

function cancel() {
  const own = document.querySelector('form[data-action="cancel"] button');
  if (own) return own.click();
  const { job, name } = row()?.dataset ?? {};
  const address = row()?.dataset.cancel;
  if (job && address) soon(`Cancelling ${name ?? job} in 5 s.`, () => post(address, {}));
  return undefined;
}

async function compare() {
  const short = document.getElementById("job")?.dataset.short;
  if (short) location.href = `/compare?jobs=${short}`;
  else if (document.getElementById("bulk")) (await import("./choosing.js")).compareChosen();
}

function nextX() {
  const x = document.getElementById("chart-x");
  if (!x) return;
  x.selectedIndex = (x.selectedIndex + 1) % x.options.length;
  x.dispatchEvent(new Event("change", { bubbles: true }));
  x.dispatchEvent(new Event("input", { bubbles: true }));
}

function follow(rel) {
  document.querySelector(`a[rel="${rel}"]`)?.click();
}

function showKeys() {
  const dialog = document.createElement("dialog");
  dialog.className = "dialog";
  dialog.setAttribute("aria-label", "Keys");
  const title = Object.assign(document.createElement("h2"), { textContent: "Keys" });
  const list = document.createElement("dl");
  list.className = "facts";
  for (const [key, words] of ALL) {
    const term = document.createElement("dt");
    term.append(Object.assign(document.createElement("kbd"), { textContent: key }));
    list.append(term, Object.assign(document.createElement("dd"), { textContent: words }));
  }
  const close = Object.assign(document.createElement("button"), { type: "button", textContent: "Close" });
  close.addEventListener("click", () => dialog.close());
  dialog.append(title, list, close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
