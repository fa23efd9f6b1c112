// The Queue, live, and the order of one's own waiting jobs: Alt+Up, Alt+Down or the buttons.
import { send } from "./actions.js";
import { by, make, readPage, say } from "./dom.js";
import { watchRows } from "./rows.js";
import "./shell.js";

// An explanation asks the scheduler, so it is fetched when it is opened; toggle does not bubble.
document.addEventListener(
  "toggle",
  async ({ target }) => {
    const address = target.dataset?.explain;
    if (!address || !target.open || target.querySelector("ul")) return;
    const state =
      target.querySelector("[role=status]") ?? target.appendChild(make("p", { className: "quiet", role: "status" }));
    state.textContent = say("Asking the scheduler ...");
    const answer = await fetch(address).catch(() => null);
    if (!answer?.ok) {
      state.textContent = say("The scheduler could not be asked; close and open this to ask again.");
      return;
    }
    state.remove();
    const { body } = await readPage(answer);
    target.querySelector("ul") ?? target.append(...body.childNodes);
  },
  true,
);
watchRows("queue", ["queue"]);
document.querySelector(".page-head").addEventListener("change", ({ target }) => target.form.requestSubmit());

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-move]")) return;
  event.preventDefault();
  move(event.target.closest("tr"), event.submitter?.name === "behind" ? 1 : -1, event.submitter);
});
addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const row = document.activeElement?.closest("tr[data-group]");
  if (!step || !row || !event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  move(row, step, document.activeElement);
});

// The row moves at once, and back if the server refuses; its buttons are the server's, which draws the queue again.
async function move(row, step, focused) {
  const mine = [...row.parentNode.children].filter((one) => one.dataset.group === row.dataset.group);
  const other = mine[mine.indexOf(row) + step];
  if (!other) return;
  exchange(row, other);
  focused?.focus({ preventScroll: true });
  const beside = { [step < 0 ? "before" : "behind"]: other.dataset.id };
  if (await send("POST", `/api/v1/jobs/${row.dataset.id}/move`, beside)) {
    const place = row.querySelector("[data-place]").textContent;
    by("moved").textContent = say("{name} is number {place} now.", { name: row.dataset.name, place });
  } else if (row.isConnected && other.isConnected) exchange(row, other);
}

// Two rows change places, and those of others between them stay where they are.
function exchange(one, other) {
  const gap = document.createComment("");
  one.replaceWith(gap);
  other.replaceWith(one);
  gap.replaceWith(other);
  const rows = [...one.parentNode.children];
  rows.forEach((row, at) => {
    row.querySelector("[data-place]").textContent = at + 1;
  });
}
