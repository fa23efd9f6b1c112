// The Queue, live.
import { watchRows } from "./rows.js";
import { startShell } from "./shell.js";

startShell();
watchRows("queue", ["queue"]);
for (const control of document.querySelectorAll(".page-head select, .page-head input")) {
  control.addEventListener("change", () => control.form.requestSubmit());
}
