// A form with code: a file that is dropped anywhere on its page, and the first field that is wrong.
import { by } from "./dom.js";
import "./shell.js";

const file = by("file");

export function take(files) {
  file.files = files;
  file.dispatchEvent(new Event("change"));
}

const drop = by("drop"); // none where only the rules of a service may be changed
if (drop) {
  addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("is-over");
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && drop.classList.remove("is-over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("is-over");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
  });
}
document.querySelector("[aria-invalid=true]")?.focus();
