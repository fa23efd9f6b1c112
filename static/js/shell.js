// What every live page does: times, the live sign, and the band that names what does not work.
import { icon } from "./icons.js";
import { startLiveDot } from "./live-dot.js";
import { live } from "./socket.js";
import { startTimes } from "./time.js";

export function startShell() {
  startTimes();
  startLiveDot();
  live.subscribe("health", (frame) => frame.data && showProblems(frame.data.problems), { sleeps: false });
}

function showProblems(problems) {
  const bands = document.getElementById("bands");
  const now = problems.map((problem) => problem.sentence).join("\n");
  if ([...bands.children].map((band) => band.textContent.trim()).join("\n") === now) return;
  bands.replaceChildren(...problems.map(band));
}

function band(problem) {
  const element = document.createElement("p");
  element.className = "band";
  element.dataset.part = problem.part;
  const words = document.createElement("span");
  words.textContent = problem.sentence;
  element.append(icon("warning"), words);
  return element;
}
