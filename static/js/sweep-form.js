// The form that begins a sweep: one more row for each setting.
import { by, say } from "./dom.js";
import "./code-file.js";
import "./shell.js";
import { easeFields } from "./submit-fields.js";

easeFields((field, value) => {
  field.value = value;
  field.closest("details")?.setAttribute("open", "");
});

const rows = by("space-rows");
by("add-row").addEventListener("click", () => {
  const row = rows.lastElementChild.cloneNode(true);
  const number = rows.children.length + 1;
  row.ariaLabel = say("Setting {number}", { number });
  for (const error of row.querySelectorAll(".error")) error.remove();
  for (const control of row.querySelectorAll("input, select")) {
    control.id = `${control.name}_${number}`;
    control.parentElement.querySelector("label").htmlFor = control.id;
    control.removeAttribute("aria-invalid");
    control.removeAttribute("aria-describedby");
    if (control.matches("input")) control.value = "";
  }
  rows.append(row);
  row.querySelector("input").focus();
});

by("sweep-form").addEventListener("submit", () => {
  by("run").textContent = say("Beginning");
});
