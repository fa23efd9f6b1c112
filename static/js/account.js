// The account page: copy a new token.
import { toast } from "./toast.js";
import { startTimes } from "./words.js";

startTimes();
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    toast("Copied.");
  });
}
