// Pages whose parts change without a message: drawn again while somebody looks at them.
import { refresh } from "./rows.js";
import "./shell.js";

const EVERY_MS = 2000;
const parts = [...document.querySelectorAll("[data-fresh]")].map(({ id }) => id);

setInterval(() => document.hidden || refresh(...parts), EVERY_MS);
document.addEventListener("visibilitychange", () => document.hidden || refresh(...parts));
