// Plain forms over REST without a new page: the server's sentence is shown, and what it changed is drawn again.
import { post } from "./actions.js";
import { by } from "./dom.js";
import { refresh } from "./rows.js";
import "./shell.js";

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[action='/change']");
  if (!form) return;
  event.preventDefault();
  const fields = new FormData(form, event.submitter);
  const buttons = form.querySelectorAll("button");
  for (const button of buttons) button.disabled = true;
  await post(form.action, fields);
  for (const button of buttons) button.disabled = false;
  refresh(...["pools", "quotas", "people", "week"].filter(by));
});

// A moment as the reader's clock has it; without this it would be read as UTC.
document.addEventListener("formdata", ({ formData }) => {
  for (const [name, text] of [...formData])
    if (name.endsWith(":moment") && text) formData.set(name, new Date(text).toISOString());
});
