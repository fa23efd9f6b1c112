// The Queue, live.
import { watchOrder } from "./own-order.js";
import { watchRows } from "./rows.js";
import { startShell } from "./shell.js";

startShell();
// An explanation asks the scheduler, so it is fetched when it is opened; toggle does not bubble.
document.addEventListener("toggle", async ({ target }) => {
  const address = target.dataset?.explain;
  if (!address || !target.open || target.querySelector("ul")) return;
  const answer = await fetch(address).catch(() => null);
  if (!answer?.ok) return;
  const piece = new DOMParser().parseFromString(await answer.text(), "text/html");
  target.querySelector("ul") ?? target.append(...piece.body.childNodes);
}, true);
watchRows("queue", ["queue"]);
watchOrder();
for (const control of document.querySelectorAll(".page-head select, .page-head input")) {
  control.addEventListener("change", () => control.form.requestSubmit());
}
