// Pages whose parts change without a message: drawn again while somebody looks at them.
import { refresh } from "./rows.js";
import "./shell.js";

const SOON_MS = 1000; // while something that was asked for is not there yet
const EVERY_MS = 3000;
const parts = [...document.querySelectorAll("[data-fresh]")].map(({ id }) => id);

function look() {
  if (!document.hidden) refresh(...parts);
  setTimeout(look, document.querySelector("[data-fresh] [data-soon]") ? SOON_MS : EVERY_MS);
}

setTimeout(look, SOON_MS);
