// Fields of the submit form that a script makes easier to fill; what is sent stays the text that the server reads.
import { by, make, say } from "./dom.js";

// fill writes a value into a field as if somebody had typed it.
export function easeFields(fill) {
  easeDatasets(by("datasets"), by("args"), fill);
  easeTime(by("not_before"), fill);
  for (const choice of document.querySelectorAll("[data-adds]")) easeJobs(choice, by(choice.dataset.adds), fill);
}

// Choosing a dataset adds its path to the arguments, and no longer choosing it takes that away.
function easeDatasets(list, args, fill) {
  if (!list?.options || !args) return;
  const chosen = () => new Set([...list.selectedOptions].map((one) => one.text.trim().split("@")[0].split("/").pop()));
  let before = chosen();
  list.addEventListener("change", () => {
    const now = chosen();
    let text = args.value;
    for (const name of before) if (!now.has(name)) text = text.replace(` --data {dataset:${name}}`, "");
    for (const name of now)
      if (!before.has(name) && !text.includes(`{dataset:${name}}`)) text = `${text.trimEnd()} --data {dataset:${name}}`;
    before = now;
    if (text !== args.value) fill(args, text);
  });
}

// The time is chosen in the reader's time zone and sent in UTC.
function easeTime(field, fill) {
  if (!field) return;
  const local = make("input", { type: "datetime-local", id: "not_before_local" });
  const at = field.value && new Date(field.value.replace(" ", "T").replace(/Z?$/, "Z"));
  if (at) {
    if (isNaN(at)) return; // a text that only its writer can mend
    local.value = new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
  }
  const label = document.querySelector("label[for=not_before]");
  label.htmlFor = local.id;
  label.textContent = label.textContent.replace("UTC", say("your time"));
  local.setAttribute("aria-describedby", "not_before-hint");
  local.addEventListener("input", () =>
    fill(field, local.value ? new Date(local.value).toISOString().replace(/\.\d+/, "") : ""),
  );
  field.type = "hidden";
  field.before(local);
}

function easeJobs(choice, field, fill) {
  choice.hidden = false;
  choice.addEventListener("change", (event) => {
    event.stopPropagation();
    if (choice.value && !field.value.includes(choice.value)) fill(field, `${field.value} ${choice.value}`.trim());
    choice.value = "";
  });
}
