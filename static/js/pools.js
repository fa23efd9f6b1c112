// Pools: devices are moved by dragging or by their list, everything else by small forms.
import { send } from "./actions.js";
import { watchRestForms } from "./rest-forms.js";
import { refresh } from "./rows.js";
import { startShell } from "./shell.js";
import { toast } from "./toast.js";

const REGIONS = ["pools", "quotas"];

startShell();
watchRestForms((form) => {
  toast(form.dataset.done ?? "Changed.");
  refresh(...REGIONS.filter((id) => document.getElementById(id)));
});

document.addEventListener("change", (event) => {
  const list = event.target.closest("select[data-move]");
  if (list) move(list.dataset.move, list.value);
});

let dragged = null;
document.addEventListener("dragstart", (event) => {
  dragged = event.target.closest?.("[data-device][draggable]")?.dataset.device ?? null;
  if (dragged) event.dataTransfer.setData("text/plain", dragged);
});
document.addEventListener("dragover", (event) => {
  const pool = event.target.closest?.("[data-pool]");
  if (dragged && pool) event.preventDefault();
  for (const one of document.querySelectorAll("[data-pool]")) one.classList.toggle("is-over", Boolean(dragged) && one === pool);
});
document.addEventListener("drop", (event) => {
  const pool = event.target.closest?.("[data-pool]");
  if (!dragged || !pool) return;
  event.preventDefault();
  move(dragged, pool.dataset.pool);
});
document.addEventListener("dragend", () => {
  dragged = null;
  for (const one of document.querySelectorAll("[data-pool]")) one.classList.remove("is-over");
});

async function move(device, pool) {
  if (await send("PATCH", `/api/v1/devices/${encodeURIComponent(device)}`, { pool })) toast(`Moved to ${pool}.`);
  refresh("pools");
}
