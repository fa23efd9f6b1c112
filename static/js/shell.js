// What every live page does: times, the live sign, the band that names what does not work, the theme's colours.
import { by, icon, make, say, write } from "./dom.js";
import { live } from "./socket.js";
import { clock, serverNow, startTimes } from "./words.js";

let pressed = Promise.resolve();
let waiting = 0; // keys that were pressed and did nothing yet: their script is loaded at the first

function startKeys() {
  const palette = async () => (await import("./keys.js")).openPalette();
  by("palette-open")?.addEventListener("click", palette);
  if (navigator.clipboard) document.documentElement.dataset.copies = "";
  document.addEventListener("click", async ({ target }) => {
    const edited = target.closest("[data-edit]");
    if (edited) (await import("./edit.js")).editFrom(edited);
    if (target.dataset?.copy) (await import("./actions.js")).copyText(by(target.dataset.copy).textContent, say("Copied."));
  });
  const hasFile = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (hasFile(event)) event.preventDefault();
  });
  addEventListener("drop", async (event) => {
    if (!hasFile(event) || by("drop")) return; // _code_file.html: this form takes the file itself
    event.preventDefault();
    await (await import("./dropped.js")).keepDropped(event.dataTransfer.files[0]);
    location.href = "/submit#dropped";
  });
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      palette();
      return;
    }
    if (event.key === "F6") {
      event.preventDefault();
      (document.querySelector("#toasts button") ?? by("bell"))?.focus();
      return;
    }
    const isTyping = event.target.closest(
      "input:not([type=checkbox], [type=radio]), select, textarea, [contenteditable], dialog",
    );
    const isLate = event.key === "Enter" && waiting; // what it opens will have the focus
    if (
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      isTyping ||
      (event.key.length > 1 && !isLate) ||
      !("shortcuts" in document.documentElement.dataset)
    )
      return;
    const onControl = event.target.closest("button, input, summary, a") && event.key === " ";
    if (onControl && !event.target.closest("tr[data-job] a")) return; // Space is the control's own
    if (waiting || (event.key === " " && event.target.closest("tr[data-job]"))) event.preventDefault();
    waiting += 1;
    const act = async () => (await import("./keys.js")).press(event.key);
    pressed = pressed.then(act, act).finally(() => {
      waiting -= 1;
    }); // in their order, also behind one that failed
  });
}

// A click elsewhere closes a menu, and Escape does, which leads back to what opens it.
function startMenus() {
  const open = () => [...document.querySelectorAll("details.menu[open]")];
  document.addEventListener("click", ({ target }) => {
    for (const menu of open()) if (!menu.contains(target)) menu.open = false;
  });
  document.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    for (const menu of open()) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
}

// Short messages when something happens to the reader's own jobs, on whatever page; tell() gives them their names.
const SAID = {
  running: say("{name} started."),
  succeeded: say("{name} finished."),
  failed: say("{name} failed."),
  timed_out: say("{name} reached its time limit."),
  backoff: say("{name} failed and will be retried."),
};

function startNotices() {
  const me = document.documentElement.dataset.user;
  const rows = new Map();
  live.addEventListener("frame", ({ detail: frame }) => {
    if (frame.topic !== "jobs" || !frame.data) return;
    for (const row of frame.data.jobs) {
      const before = rows.get(row.id);
      rows.set(row.id, row);
      if (frame.type === "snapshot" || !before || row.trial || row.owner !== me) continue;
      const isAlarm = row.alarm && before.alarm !== row.alarm;
      const said = isAlarm ? say("{name} {alarm}.") : before.state !== row.state && SAID[row.state];
      if (said) tell(row, said);
    }
  });
  if (!live.has("jobs")) live.subscribe("jobs", () => {}, { sleeps: false });
}

async function tell(row, said) {
  const { toast } = await import("./actions.js");
  const open = {
    label: say("Open"),
    run: () => {
      location.href = `/jobs/${row.job}`;
    },
  };
  toast(say(said, { name: row.name, alarm: say(row.alarm) }), {
    bad: row.state === "failed",
    action: by("job")?.dataset.job === row.job ? null : open,
  });
}

function showProblems(problems) {
  const bands = by("bands");
  const now = problems.map((problem) => problem.sentence).join("\n");
  if ([...bands.children].map((band) => band.textContent.trim()).join("\n") === now) return;
  bands.replaceChildren(...problems.map(band));
}

function band({ part, sentence }) {
  const element = make("p", { className: "band" }, icon("warning"), make("span", { textContent: sentence }));
  element.dataset.part = part;
  return element;
}

// The sign in the top bar: how old what you see is.
const STALE_S = 3;
let dataTime = 0; // when the newest reading was taken, server's clock

export function sawReading(taken) {
  dataTime = taken;
}

function startLiveDot() {
  const dot = by("live");
  const show = () => {
    const [state, text] = describe();
    if (dot.dataset.state !== state) dot.dataset.state = state;
    write(dot, text);
    document.body.classList.toggle("is-stale", state !== "live" && state !== "polling" && dataTime > 0);
  };
  live.addEventListener("state", show);
  setInterval(show, 500);
  show();
}

function describe() {
  const dated = (state) => (dataTime ? say("{state}, data from {time}", { state, time: clock(dataTime, true) }) : state);
  if (live.state === "signed-out") return ["signed-out", say("signed out")];
  if (live.state === "too-many") return ["reconnecting", dated(say("not live: you have too many pages open, close some"))];
  if (live.state === "connecting") return ["none", say("connecting")];
  if (live.state === "reconnecting") return ["reconnecting", dated(say("reconnecting"))];
  const text = live.state === "live" ? say("live") : say("polling");
  if (!dataTime) return [live.state, text];
  const age = Math.max(0, serverNow() - dataTime);
  return age > STALE_S ? ["stale", dated(say("stale"))] : [live.state, `${text} ${age.toFixed(1)} s`];
}

// Colours as the browser resolves them, for what is drawn rather than styled.
const known = new Map();
let probe = null;

export function colour(name, alpha = 1) {
  if (!known.has(name)) {
    probe ??= document.body.appendChild(make("i", { hidden: true }));
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

const recolour = () => {
  known.clear();
  for (const run of listeners) run();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("berth-theme", recolour); // the palette's

startTimes();
startLiveDot();
startKeys();
startMenus();
setTimeout(startNotices); // after the page has subscribed to what it shows
live.subscribe("health", (frame) => frame.data && showProblems(frame.data.problems), { sleeps: false });
