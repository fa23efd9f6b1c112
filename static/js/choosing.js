// Choosing jobs in the table: with Space or the boxes, then one thing for all of them.
import { post, soon } from "./actions.js";
import { onRefresh, refresh } from "./rows.js";

const form = document.getElementById("bulk");
const chosen = new Map(); // id by its box's value, kept over refreshes

export function watchChoices() {
  document.addEventListener("change", (event) => event.target.matches("[data-choose]") && remember(event.target));
  form.addEventListener("submit", act);
  document.getElementById("choose-none").addEventListener("click", clear);
  onRefresh(restore);
  document.body.addEventListener("htmx:afterSwap", restore);
  for (const box of boxes()) if (box.checked) chosen.set(box.value, box.dataset.choose);
  show();
}

function boxes() {
  return document.querySelectorAll("[data-choose]");
}

function remember(box) {
  if (box.checked) chosen.set(box.value, box.dataset.choose);
  else chosen.delete(box.value);
  show();
}

function restore() {
  for (const box of boxes()) box.checked = chosen.has(box.value);
  show();
}

function clear() {
  chosen.clear();
  restore();
}

function show() {
  form.hidden = chosen.size === 0;
  document.getElementById("chosen-count").textContent = `${chosen.size} chosen`;
}

export function compareChosen() {
  const ids = [...chosen.keys()].map((id) => id.slice(-8));
  if (ids.length) location.href = `/compare?jobs=${ids.join(",")}`;
}

function act(event) {
  const action = event.submitter?.value;
  event.preventDefault();
  if (action === "compare") return compareChosen();
  const fields = new FormData(form);
  fields.set("action", action);
  for (const id of chosen.keys()) fields.append("job", id);
  const count = chosen.size;
  const run = async () => {
    await post(form.action, fields);
    clear();
    refresh("jobs");
  };
  if (action === "cancel") return soon(`Cancelling ${count} ${count === 1 ? "job" : "jobs"} in 5 s.`, run);
  return run();
}
