// The keys and the palette (anything by name, and what can be done to the thing that is open): loaded at their first use.
// Single keys are off while a field has focus, or in the account; the page of keys (/keys) lists them all.
import { post, send, soon, toast, undo } from "./actions.js";
import { by, icon, say, store, readPage, readStored, make, openDialog, write } from "./dom.js";

const GO = {
  o: "/",
  q: "/queue",
  j: "/jobs",
  c: "/compare",
  d: "/datasets",
  b: "/benchmarks",
  u: "/usage",
  p: "/pools",
};
const G_MS = 1500;
let goUntil = 0;

const actions = {
  g: () => {
    goUntil = Date.now() + G_MS;
  },
  c: () => {
    location.href = "/submit";
  },
  "/": () => document.querySelector("#q, #log-search, #add")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  " ": () => document.dispatchEvent(new CustomEvent("berth-peek", { detail: row() })),
  s: () => click(row(), "[data-choose]"),
  x: cancel,
  u: undo,
  e: () => click(row() ?? document, "[data-explain] summary, details[data-explain] > summary"),
  n: () => click(row() ?? document, "[data-clone]"),
  f: () => click(document, "#log-follow"),
  l: () => click(document, "#chart-log"),
  t: nextX,
  "=": compare,
  "[": () => click(document, "a[rel=prev]"),
  "]": () => click(document, "a[rel=next]"),
  ...Object.fromEntries([1, 2, 3, 4, 5, 6].map((key) => [key, () => click(document, `[aria-keyshortcuts="${key}"]`)])),
  "?": showKeys,
  Enter: () => document.activeElement.click(),
};

// Whether the key meant something here.
export function press(key) {
  if (Date.now() < goUntil) {
    goUntil = 0;
    if (GO[key]) location.href = GO[key];
    return Boolean(GO[key]);
  }
  const run = actions[key];
  if (!run || (key === " " && !row())) return false;
  run();
  return true;
}

function row() {
  return document.activeElement?.closest("tr[data-job]");
}

function move(by) {
  const all = [...document.querySelectorAll("tr[data-job], .tile[data-device]")].filter((one) =>
    one.querySelector("a"),
  );
  const at = all.findIndex((one) => one.contains(document.activeElement));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
  (next?.querySelector("th a") ?? next?.querySelector("a"))?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function click(within, selector) {
  within?.querySelector(selector)?.click();
}

function cancel() {
  const own = document.querySelector('form[data-action="cancel"] button');
  if (own) return own.click();
  const { job, name } = row()?.dataset ?? {};
  const address = row()?.dataset.cancel;
  if (job && address) soon(say("Cancelling {name} in 5 s.", { name: name ?? job }), () => post(address, {}));
  return undefined;
}

function compare() {
  const short = by("job")?.dataset.short;
  if (short) location.href = `/compare?jobs=${short}`;
  else click(document, "#bulk:not([hidden]) button[value=compare]");
}

function nextX() {
  const x = by("chart-x");
  if (!x) return;
  x.selectedIndex = (x.selectedIndex + 1) % x.options.length;
  x.dispatchEvent(new Event("input", { bubbles: true }));
}

async function showKeys() {
  const answer = await fetch("/keys").catch(() => null);
  const list = answer?.ok && (await readPage(answer)).getElementById("keys");
  if (list)
    openDialog(
      say("Keys"),
      make("h2", { textContent: say("Keys") }),
      list,
      make("form", { method: "dialog" }, make("button", { textContent: say("Close") })),
    );
}

const RECENT_KEY = "berth-recent";
const MOST_RECENT = 8;
const WAIT_MS = 80;
const ICONS = {
  job: "jobs",
  device: "pools",
  user: "account",
  dataset: "datasets",
  action: "submit",
  page: "overview",
  here: "running",
};

const THEMES = [
  ["light", say("Light theme")],
  ["dark", say("Dark theme")],
  ["", say("Theme of the system")],
].map(([theme, title]) => ({ kind: "here", title, detail: say("in this browser"), theme }));

let dialog = null;
let hits = [];
let at = 0;
let asked = 0;
let timer = 0;

export function openPalette() {
  dialog ??= build();
  if (dialog.open) return dialog.close();
  dialog.querySelector("input").value = "";
  dialog.showModal();
  show(matching(""));
  ask("");
  return undefined;
}

function build() {
  const input = make("input", {
    type: "text",
    placeholder: say("A job, device, person, dataset, or what to do"),
    maxLength: 200,
    autocomplete: "off",
    spellcheck: false,
    role: "combobox",
    ariaExpanded: "true",
    ariaAutoComplete: "list",
    ariaLabel: say("Search or run"),
  });
  input.setAttribute("aria-controls", "palette-hits");
  const list = make("ul", { id: "palette-hits", role: "listbox", ariaLabel: say("Found") });
  const none = make("p", { id: "palette-none", className: "quiet", role: "status" });
  const made = make("dialog", { className: "dialog palette", ariaLabel: say("Search or run") }, input, list, none);
  input.addEventListener("input", () => {
    asked += 1; // an answer to what the field held before comes too late
    show(matching(input.value));
    clearTimeout(timer);
    timer = setTimeout(() => ask(input.value), WAIT_MS);
  });
  made.addEventListener("keydown", onKey);
  made.addEventListener("click", (event) => {
    if (event.target === made) made.close();
    const found = event.target.closest("[role=option]");
    if (found) run(hits[[...list.children].indexOf(found)]);
  });
  document.body.append(made);
  return made;
}

function onKey(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && hits.length) {
    at = (at + step + hits.length) % hits.length;
    mark();
  } else if (event.key === "Enter" && hits[at]) run(hits[at]);
  else return;
  event.preventDefault();
}

// What the page itself offers, and what was used lately: at once, without the server.
function matching(text) {
  const wanted = text.trim().toLowerCase();
  const here = [...document.querySelectorAll("form[data-action] button, [data-clone]")].map((button) => ({
    kind: "here",
    title: button.textContent.trim(),
    detail: document.querySelector("h1")?.textContent ?? "",
    button,
  }));
  const found = [...here, ...recent(), ...(wanted ? THEMES : [])].filter((hit) => `${hit.title} ${hit.detail}`.toLowerCase().includes(wanted));
  return wanted ? found.slice(0, 5) : found;
}

// What stands where hits would be: that there are none is known only when the server has answered.
const SAID = {
  asking: say("Searching ..."),
  none: say(
    "Nothing has this name. Verbs are cancel, hold, release, resume, priority, rename, limit, tags, drain, enable.",
  ),
  failed: say("The server did not answer; type again to search again."),
};

async function ask(text) {
  const number = (asked += 1);
  const answer = await fetch(`/api/v1/search?q=${encodeURIComponent(text.trim())}`).catch(() => null);
  const results = answer?.ok ? (await answer.json()).results : null;
  if (number !== asked) return; // asked only now: more may have been typed while the answer was read
  if (!results) return showState("failed");
  const own = matching(text);
  const known = new Set(own.map((hit) => hit.url).filter(Boolean));
  return show([...own, ...results.filter((hit) => !known.has(hit.url))], "none");
}

function show(found, state = "asking") {
  hits = found;
  at = 0;
  by("palette-hits").replaceChildren(...found.map(item));
  showState(state);
  mark();
}

function showState(state) {
  by("palette-none").hidden = hits.length > 0 && state !== "failed";
  write(by("palette-none"), SAID[state]);
}

function item(hit, index) {
  const detail = make("span", { className: "quiet small end cut", textContent: hit.detail });
  return make(
    "li",
    { id: `palette-${index}`, role: "option" },
    icon(ICONS[hit.kind] ?? "jobs"),
    make("bdi", { textContent: hit.title }),
    detail,
  );
}

function mark() {
  const items = [...by("palette-hits").children];
  items.forEach((one, index) => one.setAttribute("aria-selected", index === at));
  dialog.querySelector("input").setAttribute("aria-activedescendant", items[at]?.id ?? "");
  items[at]?.scrollIntoView({ block: "nearest" });
}

async function run(hit) {
  dialog.close();
  if (hit.button) return hit.button.click();
  if ("theme" in hit) return setTheme(hit.theme);
  if (hit.edit) return (await import("./edit.js")).edit(hit.edit);
  if (hit.url) {
    remember(hit);
    location.href = hit.url;
    return undefined;
  }
  const { method, path, body, confirm: question } = hit.action;
  if (question && !(await agreed(question, hit.title))) return undefined;
  if (await send(method, path, body)) toast(say("{name}: done.", { name: hit.title }));
  return undefined;
}

async function setTheme(theme) {
  const { dataset } = document.documentElement;
  const density = "compact" in dataset ? "compact" : "";
  if (!(await post("/account/theme", { theme, density }))) return;
  if (theme) dataset.theme = theme;
  else delete dataset.theme;
  dispatchEvent(new Event("berth-theme"));
}

function agreed(question, name) {
  const answers = [make("button", { textContent: name, value: "yes" }), make("button", { textContent: say("Leave it") })];
  const asking = openDialog(
    name,
    make("p", { textContent: question }),
    make("form", { method: "dialog", className: "row" }, ...answers),
  );
  return new Promise((resolve) => {
    asking.addEventListener("close", () => resolve(asking.returnValue === "yes"));
  });
}

function recent() {
  const found = readStored(RECENT_KEY);
  return (Array.isArray(found) ? found : []).filter(
    (hit) => typeof hit?.title === "string" && /^\/(?!\/)/.test(hit.url),
  );
}

function remember({ kind, title, detail, url }) {
  store(RECENT_KEY, [{ kind, title, detail, url }, ...recent().filter((hit) => hit.url !== url)].slice(0, MOST_RECENT));
}
