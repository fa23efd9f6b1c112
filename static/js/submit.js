// The submit form: drop a file, pick a count, Ctrl-Enter.
import { take } from "./code-file.js";
import { by, say } from "./dom.js";
import "./shell.js";
import { easeFields } from "./submit-fields.js";

const form = by("submit-form");
const file = by("file");
const count = by("gpus");

for (const button of document.querySelectorAll("[data-count]")) {
  button.hidden = false;
  button.addEventListener("click", () => fill(count, button.dataset.count));
}

function fill(field, value) {
  field.value = value;
  field.closest("details")?.setAttribute("open", "");
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

easeFields(fill);

// The plan is the server's; only the answer to the newest question is shown.
const plan = by("plan");
const PLAN_AFTER_MS = 300;
let asked = 0;
let timer = 0;

async function askPlan() {
  const number = (asked += 1);
  const fields = new FormData(form);
  fields.delete("file");
  fields.set("file_name", file.files[0]?.name ?? "");
  const answer = await fetch(plan.dataset.plan, { method: "POST", body: fields }).catch(() => null);
  if (!answer?.ok || number !== asked) return;
  plan.innerHTML = await answer.text();
  showUses();
}

function showUses() {
  for (const use of plan.querySelectorAll("[data-use]")) use.hidden = false;
}

function planSoon() {
  clearTimeout(timer);
  timer = setTimeout(askPlan, PLAN_AFTER_MS);
}

form.addEventListener("input", planSoon);
showUses();
plan.addEventListener(
  "click",
  ({ target }) => target.dataset.use && fill(form.elements[target.dataset.use], target.dataset.value),
);

if (location.hash === "#dropped") {
  history.replaceState(null, "", location.pathname);
  import("./dropped.js").then(async ({ takeDropped }) => {
    const given = await takeDropped();
    if (!given) return;
    const list = new DataTransfer();
    list.items.add(given);
    take(list.files);
  });
}

file.addEventListener("change", () => {
  const name = file.files[0]?.name;
  if (name) by("name").placeholder = name.replace(/\.(py|zip|tar|gz|tgz)$/, "");
  by("drop").classList.remove("is-bad");
  planSoon();
});

addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.addEventListener("submit", () => {
  by("run").textContent = say("Submitting");
});
