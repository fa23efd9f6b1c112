// What a job reported besides numbers: filled once, renewed while it runs, and a slider through the steps.
import { by, make } from "./dom.js";

const EVERY_MS = 15_000;
const panel = by("media");
const reels = by("media-reels");
const touched = new Set(); // sliders that somebody moved stay where they are

async function text(query = "") {
  const answer = await fetch(`${panel.dataset.media}${query}`);
  return answer.ok ? answer.text() : null;
}

async function fill() {
  const html = await text();
  if (html === null) return;
  const made = make("template", { innerHTML: html }); // escaped by the server's templates
  const names = (root) => [...root.querySelectorAll(".reel")].map((reel) => `${reel.dataset.name} ${reel.dataset.count}`);
  if (names(made.content).join() === names(reels).join()) return;
  panel.hidden = !made.content.querySelector(".reel");
  by("media-refresh").hidden = !touched.size;
  if (!touched.size) reels.replaceChildren(made.content);
}

by("media-refresh").addEventListener("click", () => {
  touched.clear();
  fill();
});

reels.addEventListener("input", async ({ target }) => {
  const reel = target.closest(".reel");
  touched.add(reel.dataset.name);
  const wanted = target.value;
  const html = await text(`?${new URLSearchParams({ kind: reel.dataset.kind, name: reel.dataset.name, at: wanted })}`);
  if (html !== null && target.value === wanted) reel.querySelector(".medium").innerHTML = html;
});

await fill();
if (!panel.dataset.final) setInterval(() => document.hidden || fill(), EVERY_MS);
