// How times and counts are written (the same rules as berth/shared/words.py), and kept fresh on the page.
import { locale, make, say, write } from "./dom.js";

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours] = [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600)];
  const [minutes, left] = [Math.floor((whole % 3600) / 60), whole % 60];
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  if (minutes >= 10 || (minutes && !left)) return `${minutes} min`;
  return minutes ? `${minutes} min ${left} s` : `${left} s`;
}

export function relative(seconds) {
  if (Math.abs(seconds) < 1) return say("now");
  return seconds > 0 ? say("in {time}", { time: duration(seconds) }) : say("{time} ago", { time: duration(-seconds) });
}

export function value(number) {
  if (number === null || number === undefined) return "";
  const far = Math.abs(number);
  if (Number.isInteger(number) && far < 1e12) return number.toLocaleString("en");
  if (far >= 1e4 && far < 1e6) return Math.round(number).toLocaleString("en");
  if (far >= 1e-3 && far < 1e4) return String(Number(number.toPrecision(4)));
  return short(number);
}

// Three digits; far from 1 with an exponent of two digits, as Python writes it.
function short(number) {
  const [digits, power] = number.toExponential(2).split("e");
  if (power >= -4 && power < 3) return String(Number(number.toPrecision(3)));
  return `${Number(digits)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

export function clock(seconds, withSeconds = false) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (withSeconds) options.second = "2-digit";
  return new Date(seconds * 1000).toLocaleTimeString([], options);
}

// Times are told against the server's clock: a wrong laptop clock shows no wrong ages.
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
  else if ("day" in element.dataset)
    text = new Date(at * 1000).toLocaleDateString(locale, { weekday: "short", day: "numeric" });
  else if ("since" in element.dataset) text = duration(now - at);
  else if (Math.abs(now - at) > 86400)
    text = new Date(at * 1000).toLocaleDateString(locale, { day: "numeric", month: "short", year: "numeric" });
  else text = relative(at - now);
  write(element, text);
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
  const element = make("time", { dateTime: new Date(seconds * 1000).toISOString(), textContent: clock(seconds) });
  element.dataset.clock = "";
  return element;
}
