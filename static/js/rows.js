// Keeps rows of jobs fresh.  Cells change in place; another state, or another set of jobs, is drawn by the server.
import { by, readPage, say, write } from "./dom.js";
import { live } from "./socket.js";
import { clockElement } from "./words.js";

const ENDED = new Set(["succeeded", "failed", "cancelled", "timed_out"]);

// regions: ids of what to redraw; hasRows: each job has a row on the page; onRows gets all rows by id after each frame.
export function watchRows(topic, regions, { belongs = () => true, onRows = () => {}, hasRows = true, redraw = refresh } = {}) {
  let rows = new Map();
  let order = [];
  let before = null;
  live.subscribe(
    topic,
    (frame) => {
      if (!frame.data) return;
      if (frame.type === "snapshot") rows = new Map();
      for (const row of frame.data.jobs) {
        rows.set(row.id, row);
        showRow(row);
      }
      for (const gone of frame.data.gone ?? []) rows.delete(gone);
      order = frame.data.order ?? order;
      const shown = order.map((id) => rows.get(id)).filter((row) => row && belongs(row));
      const now = shown.map((row) => `${row.id} ${row.state}`).join();
      const isMissing = shown.some((row) => !ENDED.has(row.state) && !rowElement(row.id));
      const isOld = shown.some((row) => (rowElement(row.id)?.dataset.state ?? row.state) !== row.state);
      if (isOld || (before !== null && before !== now) || (before === null && isMissing && hasRows && !location.search))
        redraw(...regions);
      before = now;
      onRows(rows);
    },
    { sleeps: false },
  );
}

function rowElement(id) {
  return document.querySelector(`tr[data-job="${CSS.escape(id)}"]`);
}

function showRow(row) {
  const element = rowElement(row.id);
  if (element && element.dataset.state === row.state) showIn(element, row);
  for (const foot of document.querySelectorAll(`[data-foot="${CSS.escape(row.id)}"]`)) showIn(foot, row);
}

function showIn(element, row) {
  write(element.querySelector("[data-loss]"), row.loss);
  write(element.querySelector("[data-loss-name]"), row.loss_said);
  write(element.querySelector("[data-progress]"), row.done);
  const end = element.querySelector("[data-eta]");
  if (end && row.eta) end.replaceChildren(clockElement(row.eta));
  if (row.state === "queued") {
    write(element.querySelector("[data-starts]"), row.starts || say("not known"));
    write(element.querySelector("[data-sentence]"), row.sentence);
  }
}

// Redraws parts of the page from the server's HTML, when more than numbers changed.
const REST_MS = 1000;
let last = 0;
let timer = 0;
let wanted = new Set();
const afterwards = [];

export function onRefresh(run) {
  afterwards.push(run);
}

export function refresh(...ids) {
  for (const id of ids) wanted.add(id);
  if (timer) return;
  // The jitter keeps a hundred open pages from asking at the same moment.
  timer = setTimeout(fetchAll, Math.max(0, last + REST_MS - Date.now()) + Math.random() * 200);
}

async function fetchAll() {
  const ids = [...wanted];
  wanted = new Set();
  last = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { "X-Requested-With": "refresh" } });
    if (answer.ok && !answer.redirected) replace(await readPage(answer), ids);
  } catch {
    // Offline: the socket's sign says so, and its next snapshot brings us here again.
  } finally {
    timer = 0;
    if (wanted.size) refresh();
  }
}

function replace(page, ids) {
  const focused = document.activeElement;
  const path = focused?.closest("form[action]")?.getAttribute("action") ?? focused?.getAttribute("href");
  const open = [...document.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
  for (const id of ids) {
    const [now, then] = [page.getElementById(id), by(id)];
    if (
      now &&
      then &&
      shown(now) !== shown(then) &&
      !then.contains(focused?.matches("input,select,textarea") ? focused : null)
    )
      then.replaceWith(document.adoptNode(now));
  }
  for (const summary of document.querySelectorAll("details > summary"))
    if (open.includes(summary.textContent)) summary.parentElement.open = true;
  if (path && !document.contains(focused)) refocus(path, focused);
  for (const run of afterwards) run(ids);
}

// A part without what differs in each answer, or is kept fresh by itself.
function shown(part) {
  const copy = part.cloneNode(true);
  for (const one of copy.querySelectorAll("[name=csrfmiddlewaretoken], time")) one.remove();
  return copy.outerHTML;
}

// To the same words; a form whose button now says something else is found by its address, if no other has that.
function refocus(path, { name, textContent }) {
  const place = CSS.escape(path);
  const all = [...document.querySelectorAll(`form[action="${place}"] button:enabled, a[href="${place}"]`)];
  const isOne = new Set(all.map((one) => one.form ?? one)).size === 1;
  const next = all.find((one) => one.textContent === textContent) ?? (isOne ? all.find((one) => one.name === name) ?? all[0] : null);
  next?.focus({ preventScroll: true });
}
