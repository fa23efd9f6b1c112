// A row's job in short, beside the table: Space opens and closes it, and it follows from row to row.
import { button, by, make, say } from "./dom.js";

const GONE = say("This job is no longer there, or no longer yours to see.");
const SILENT = say("The server did not answer.");

let shown = ""; // the job's id
let asked = 0;

export function watchPeek() {
  const table = by("main");
  table.addEventListener("click", (event) => {
    const row = event.target.closest("#jobs tr[data-job]");
    if (event.target.closest("[data-close]")) close();
    else if (row && !event.target.closest("a, button, input, label") && !getSelection().toString()) {
      row.querySelector("th a").focus({ preventScroll: true });
      if (event.detail === 2) row.querySelector("th a").click();
      else if (row.dataset.id !== shown) open(row.dataset.id);
    }
  });
  table.addEventListener("focusin", ({ target }) => {
    const row = target.closest("#jobs tr[data-job]");
    if (shown && row && row.dataset.id !== shown) open(row.dataset.id);
  });
  document.addEventListener("berth-peek", ({ detail: row }) => toggle(row));
  document.addEventListener("job-edited", () => shown && open(shown));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown && !event.defaultPrevented && !event.target.closest("dialog, details[open]")) close();
  });
}

function toggle(row) {
  if (row.dataset.id === shown) close();
  else open(row.dataset.id);
}

function close() {
  const row = document.querySelector(`#jobs tr[data-id="${CSS.escape(shown)}"]`);
  shown = "";
  mark();
  const hadFocus = by("peek").contains(document.activeElement);
  by("peek").hidden = true;
  if (hadFocus) row?.querySelector("th a").focus({ preventScroll: true });
}

async function open(id) {
  const number = (asked += 1);
  const panel = by("peek");
  shown = id;
  mark();
  panel.hidden = false;
  if (panel.dataset.job !== id) panel.replaceChildren(make("p", { className: "quiet", textContent: say("Reading ...") }));
  panel.dataset.job = id;
  const answer = await fetch(`/jobs/${id}/peek`).catch(() => null);
  const text = answer?.ok && !answer.redirected ? await answer.text().catch(() => null) : null;
  if (number !== asked || shown !== id) return;
  if (text !== null) panel.innerHTML = text;
  else panel.replaceChildren(make("p", { textContent: answer?.status === 404 ? GONE : SILENT }), button(say("Close"), close));
}

function mark() {
  document.body.classList.toggle("has-peek", Boolean(shown));
  for (const row of document.querySelectorAll("#jobs tr[data-job]")) row.classList.toggle("is-peeked", row.dataset.id === shown);
}
