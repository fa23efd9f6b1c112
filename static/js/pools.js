// Pools and devices: devices moved by dragging or by their list.
import "./change.js";

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
