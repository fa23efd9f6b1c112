// Changes one field of a job where it stands: a small dialog at the value, the change over REST, and an undo.
import { callWith, offerUndo, UNANSWERED } from "./actions.js";
import { button as makeButton, make, openDialog, say } from "./dom.js";
import { duration } from "./words.js";

const LONGEST_TAG = 64;
const SECONDS = { d: 86400, h: 3600, m: 60, s: 1, "": 1 };

// How a field is typed (the server's rules are REST's): read gives the value to send, or throws what is wrong.
const FIELDS = {
  name: {
    label: say("Name"),
    title: say("Change name"),
    read: (text) => text.trim(),
    input: { maxLength: 200, required: true },
  },
  priority: {
    label: say("Priority"),
    title: say("Change priority"),
    hint: say("0 to 100; higher starts earlier"),
    read: Number,
    input: { type: "number", min: 0, max: 100, required: true },
  },
  time_limit_s: {
    label: say("Time limit"),
    title: say("Change time limit"),
    hint: say("such as 90m, 2h or 1d12h; empty for none"),
    read: seconds,
    input: {},
  },
  tags: {
    label: say("Tags"),
    title: say("Change tags"),
    hint: say("one on each line"),
    tag: "textarea",
    read: (text) => [...new Set(text.split("\n").map((line) => line.trim()).filter(Boolean))],
    input: { rows: 4, maxLength: 20 * (LONGEST_TAG + 1) },
  },
};

function seconds(text) {
  const typed = text.replaceAll(" ", "");
  if (!typed) return null;
  if (!/^\d+(\.\d+)?[dhms]?(\d+[hms])*$/.test(typed))
    throw new Error(say("This is not a duration; give one such as 90s, 45m, 2h or 1d12h."));
  return [...typed.matchAll(/(\d+(?:\.\d+)?)([dhms]?)/g)].reduce((sum, [, count, unit]) => sum + count * SECONDS[unit], 0);
}

export function editFrom(element) {
  const { edit: field, path, value, jobName } = element.dataset;
  edit({ field, path, value, name: jobName }, element);
}

// What is changed: a field of the job at this path of REST, and its value as it is typed.
export function edit({ field, path, value, name }, at = null) {
  const { label, title, hint = "", tag = "input", read, input: properties } = FIELDS[field];
  const input = make(tag, { name: "value", value, autocomplete: "off", ...properties });
  const problem = make("p", { className: "error", role: "alert", hidden: true });
  const said = make("span", { className: "hint", textContent: hint, hidden: !hint });
  const whose = make("b", { textContent: say("{label} of {name}", { label, name }) });
  const caption = make("label", { className: "field" }, whose, input, said);
  const cancel = makeButton(say("Cancel"), () => dialog.close(), "is-plain");
  const save = make("button", { textContent: say("Save"), className: "is-main" });
  const form = make("form", { method: "dialog" }, caption, problem, make("p", { className: "row" }, save, cancel));
  const dialog = openDialog(title, form);
  dialog.classList.add("edit-dialog");
  if (at) put(dialog, at);
  input.select();
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const failed = await change(field, path, () => read(input.value)).catch((error) => error.message);
    problem.hidden = !failed;
    problem.textContent = failed ?? "";
    input.setAttribute("aria-invalid", Boolean(failed));
    if (failed) return input.focus();
    dialog.close();
    show(field, path, input.value);
    const undo = async () => {
      if (await change(field, path, () => read(value)).catch((error) => error.message)) return;
      show(field, path, value);
    };
    return offerUndo(say("{label} of {name}: {value}.", { label, name, value: shown(field, input.value) }), undo);
  });
}

// The sentence of what was wrong, else undefined.
async function change(field, path, read) {
  const { answer, detail } = await callWith("PATCH", path, { [field]: read() });
  return answer?.ok ? undefined : (detail ?? UNANSWERED);
}

function shown(field, text) {
  const value = FIELDS[field].read(text);
  if (field === "time_limit_s") return value === null ? say("none") : duration(value);
  return Array.isArray(value) ? value.join(", ") || say("none") : String(value);
}

// All places on the page that show it, at once: their rows are drawn anew only when the server says so.
function show(field, path, text) {
  for (const place of document.querySelectorAll(`[data-edit="${field}"][data-path="${CSS.escape(path)}"]`)) {
    place.dataset.value = text;
    place.textContent = shown(field, text);
  }
  document.dispatchEvent(new CustomEvent("job-edited", { detail: { field, path } }));
}

// Under the value, or above it where the window ends.
function put(dialog, at) {
  const place = at.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = dialog;
  const top = place.bottom + 4 + height > innerHeight ? Math.max(8, place.top - 4 - height) : place.bottom + 4;
  Object.assign(dialog.style, { top: `${top}px`, left: `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px` });
}
