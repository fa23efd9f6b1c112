// The submit form: drop a file, pick a count, Ctrl-Enter.
import { startTimes } from "./words.js";

startTimes();
const form = document.getElementById("submit-form");
const file = document.getElementById("file");
const drop = document.getElementById("drop");
const count = document.getElementById("gpus");

for (const button of document.querySelectorAll("[data-count]")) {
  button.hidden = false;
  button.addEventListener("click", () => { count.value = button.dataset.count; });
}

// A drop anywhere on the page counts: nobody means to leave the form.
addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.classList.add("is-over");
});
addEventListener("dragleave", (event) => event.relatedTarget === null && drop.classList.remove("is-over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("is-over");
  if (event.dataTransfer.files.length) {
    file.files = event.dataTransfer.files;
    file.dispatchEvent(new Event("change"));
  }
});

if (location.hash === "#dropped") {
  history.replaceState(null, "", location.pathname);
  import("./dropped.js").then(async ({ takeDropped }) => {
    const given = await takeDropped();
    if (!given) return;
    const list = new DataTransfer();
    list.items.add(given);
    file.files = list.files;
    file.dispatchEvent(new Event("change", { bubbles: true }));
  });
}

file.addEventListener("change", () => {
  const name = file.files[0]?.name ?? "";
  const stem = name.replace(/\.(py|zip|tar|gz|tgz)$/, "");
  const field = document.getElementById("name");
  if (name && !field.value) field.placeholder = stem;
  drop.classList.remove("is-bad");
});

addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.addEventListener("submit", () => {
  document.getElementById("run").textContent = "Submitting";
});
document.querySelector("[aria-invalid=true]")?.focus();
