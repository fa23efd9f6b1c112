// What every live page does: times, the live sign, the band that names what does not work, the theme's colours.
import { live } from "./socket.js";
import { clock, serverNow, startTimes } from "./words.js";

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

// The sign in the top bar: how old what you see is.
const STALE_S = 3;
let dataTime = 0; // when the newest reading was taken, server's clock

export function sawReading(taken) {
  dataTime = taken;
}

export function startLiveDot() {
  const dot = document.getElementById("live");
  const show = () => {
    const [state, text] = describe();
    if (dot.dataset.state !== state) dot.dataset.state = state;
    if (dot.textContent !== text) dot.textContent = text;
    document.body.classList.toggle("is-stale", state !== "live" && state !== "polling" && dataTime > 0);
  };
  live.addEventListener("state", show);
  setInterval(show, 500);
  show();
}

function describe() {
  const from = dataTime ? `, data from ${clock(dataTime, true)}` : "";
  if (live.state === "signed-out") return ["signed-out", "signed out"];
  if (live.state === "connecting") return ["none", "connecting"];
  if (live.state === "reconnecting") return ["reconnecting", `reconnecting${from}`];
  const way = live.state; // live or polling
  if (!dataTime) return [way, way];
  const age = Math.max(0, serverNow() - dataTime);
  return age > STALE_S ? ["stale", `stale${from}`] : [way, `${way} ${age.toFixed(1)} s`];
}

// Icons from the page's one sprite.
const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `${document.documentElement.dataset.icons}#${name}`);
  svg.append(use);
  return svg;
}

// Colours as the browser resolves them, for what is drawn rather than styled.
const known = new Map();
let probe = null;

export function colour(name, alpha = 1) {
  if (!known.has(name)) {
    probe ??= document.body.appendChild(Object.assign(document.createElement("i"), { hidden: true }));
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  const text = known.get(name);
  return alpha === 1 ? text : text.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}

const listeners = [];

export function onThemeChange(run) {
  listeners.push(run);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  known.clear();
  for (const run of listeners) run();
});
