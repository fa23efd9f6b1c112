// Keeps the page's times fresh, against the server's clock: a wrong laptop clock shows no wrong ages.
import { clock, duration, relative } from "./words.js";

let offset = 0; // server minus here, seconds

export function setServerNow(now) {
  offset = now - Date.now() / 1000;
}

export function serverNow() {
  return Date.now() / 1000 + offset;
}

function show(element, now) {
  const at = Date.parse(element.dateTime) / 1000;
  let text;
  if ("clock" in element.dataset) text = clock(at);
  else if ("since" in element.dataset) text = duration(now - at);
  else if (Math.abs(now - at) > 86400) text = new Date(at * 1000).toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
  else text = relative(at - now);
  if (element.textContent !== text) element.textContent = text;
  return Math.abs(now - at);
}

export function startTimes() {
  let turn = 0;
  const tick = () => {
    const now = serverNow();
    for (const element of document.querySelectorAll("time[datetime]")) {
      const age = Math.abs(now - Date.parse(element.dateTime) / 1000);
      if (age < 60 || turn % 15 === 0 || !element.dataset.shown) {
        show(element, now);
        element.dataset.shown = "1";
      }
    }
    turn += 1;
  };
  tick();
  setInterval(tick, 1000);
}

export function clockElement(seconds) {
  const element = document.createElement("time");
  element.dateTime = new Date(seconds * 1000).toISOString();
  element.dataset.clock = "";
  element.textContent = clock(seconds);
  return element;
}
