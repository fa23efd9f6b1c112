// Pools and devices: their plain forms without a new page, and devices moved by dragging or by their list.
import { post } from "./actions.js";
import { by } from "./dom.js";
import { refresh } from "./rows.js";
import "./shell.js";

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[action='/change']");
  if (!form) return;
  event.preventDefault();
  const fields = new FormData(form, event.submitter);
  const buttons = form.querySelectorAll("button");
  for (const button of buttons) button.disabled = true;
  await post(form.action, fields);
  for (const button of buttons) button.disabled = false;
  refresh(...["pools", "quotas"].filter(by));
});

// A moment as the reader's clock has it; without this it would be read as UTC.
document.addEventListener("formdata", ({ formData }) => {
  for (const [name, text] of [...formData])
    if (name.endsWith(":moment") && text) formData.set(name, new Date(text).toISOString());
});

document.addEventListener("change", ({ target }) => target.form?.matches("[data-move]") && target.form.requestSubmit());

let dragged = null;
document.addEventListener("dragstart", (event) => {
  dragged = event.target.closest?.("[data-device][draggable]");
  if (dragged) event.dataTransfer.setData("text/plain", dragged.dataset.device);
});
document.addEventListener("dragover", (event) => {
  const pool = event.target.closest?.("[data-pool]");
  if (dragged && pool) event.preventDefault();
  mark(dragged && pool);
});
document.addEventListener("drop", (event) => {
  const pool = event.target.closest?.("[data-pool]");
  const form = dragged?.querySelector("form[data-move]");
  if (!form || !pool) return;
  event.preventDefault();
  form.elements.pool.value = pool.dataset.pool;
  form.requestSubmit();
});
document.addEventListener("dragend", () => {
  dragged = null;
  mark(null);
});

function mark(pool) {
  for (const one of document.querySelectorAll("[data-pool]")) one.classList.toggle("is-over", one === pool);
}
