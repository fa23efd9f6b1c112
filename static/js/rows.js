// Keeps rows of jobs fresh.  Cells change in place; another state, or another set of jobs, is drawn by the server.
import { refresh } from "./refresh.js";
import { live } from "./socket.js";
import { clockElement } from "./time.js";
import { value } from "./words.js";

const ENDED = new Set(["succeeded", "failed", "cancelled", "timed_out"]);

// regions: ids of what to draw anew; onRows gets all rows by id after each frame.
export function watchRows(topic, regions, { belongs = () => true, onRows = () => {} } = {}) {
  let rows = new Map();
  let order = [];
  let before = null;
  live.subscribe(topic, (frame) => {
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
    if (isOld || (before !== null && before !== now) || (before === null && isMissing && !location.search)) refresh(...regions);
    before = now;
    onRows(rows);
  }, { sleeps: false });
}

function rowElement(id) {
  return document.querySelector(`tr[data-job="${CSS.escape(id)}"]`);
}

function showRow(row) {
  const element = rowElement(row.id);
  if (!element || element.dataset.state !== row.state) return;
  write(element, "[data-loss]", row.loss);
  if (row.progress !== null && row.progress !== undefined) write(element, "[data-progress]", `${row.progress} %`);
  else if (row.step !== null && row.step !== undefined) write(element, "[data-progress]", `step ${value(row.step)}`);
  const end = element.querySelector("[data-eta]");
  if (end && row.eta) end.replaceChildren(clockElement(row.eta));
  if (row.state === "queued") {
    write(element, "[data-starts]", row.starts || "not known");
    write(element, "[data-sentence]", row.sentence);
  }
}

function write(element, selector, text) {
  const cell = element.querySelector(selector);
  if (cell && text !== undefined && cell.textContent !== text) cell.textContent = text;
}
