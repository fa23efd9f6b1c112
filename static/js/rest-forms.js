// Forms that speak to the REST API: data-rest="PATCH /api/v1/..."; each field says by data-as what its text is.
import { send } from "./actions.js";

const READ = {
  text: (text) => text.trim(),
  optional: (text) => text.trim() || null,
  number: (text) => (text.trim() === "" ? null : Number(text)),
  words: (text) => text.split(",").map((word) => word.trim()).filter(Boolean),
  moment: (text) => (text ? new Date(text).toISOString() : null),
  switch: (_text, field) => field.checked,
};

// done runs after a change that the server took.
export function watchRestForms(done) {
  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("form[data-rest]");
    if (!form) return;
    event.preventDefault();
    const [method, pattern] = form.dataset.rest.split(" ");
    const given = Object.fromEntries([...form.elements].filter((field) => field.name).map((field) => [field.name, READ[field.dataset.as ?? "text"](field.value, field)]));
    const address = pattern.replace(/\{(\w+)\}/g, (_all, name) => {
      const value = given[name];
      delete given[name];
      return encodeURIComponent(value);
    });
    const body = event.submitter?.name ? { ...given, [event.submitter.name]: event.submitter.value } : given;
    const buttons = form.querySelectorAll("button");
    for (const button of buttons) button.disabled = true;
    if (await send(method, address, body)) done(form);
    for (const button of buttons) button.disabled = false;
  });
}
