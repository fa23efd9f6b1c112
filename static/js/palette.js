// The palette: anything by name, and what can be done to the thing that is open.
import { send } from "./actions.js";
import { toast } from "./toast.js";

const RECENT_KEY = "berth-recent";
const MOST_RECENT = 8;
const WAIT_MS = 80;
const ICONS = { job: "jobs", device: "pools", user: "account", dataset: "datasets", action: "submit", page: "overview", here: "running" };

let dialog = null;
let icon = null; // the shell's; it imports this module, so this one cannot import it
let hits = [];
let at = 0;
let asked = 0;
let timer = 0;

export function openPalette(shellIcon) {
  icon = shellIcon;
  dialog ??= build();
  if (dialog.open) return dialog.close();
  dialog.querySelector("input").value = "";
  dialog.showModal();
  show(matching(""));
  ask("");
  return undefined;
}

function build() {
  const made = document.createElement("dialog");
  made.className = "dialog palette";
  made.setAttribute("aria-label", "Search or run");
  const input = document.createElement("input");
  Object.assign(input, { type: "text", placeholder: "A job, device, person, dataset, or what to do", maxLength: 200, autocomplete: "off", spellcheck: false });
  for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "true", "aria-controls": "palette-hits", "aria-autocomplete": "list", "aria-label": "Search or run" })) input.setAttribute(name, value);
  const list = document.createElement("ul");
  list.id = "palette-hits";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Found");
  const none = Object.assign(document.createElement("p"), { id: "palette-none", className: "quiet", textContent: "Nothing has this name. Verbs are cancel, hold, release, resume, drain, enable." });
  made.append(input, list, none);
  input.addEventListener("input", () => {
    show(matching(input.value));
    clearTimeout(timer);
    timer = setTimeout(() => ask(input.value), WAIT_MS);
  });
  made.addEventListener("keydown", onKey);
  made.addEventListener("click", (event) => {
    if (event.target === made) made.close();
    const item = event.target.closest("[role=option]");
    if (item) run(hits[[...list.children].indexOf(item)]);
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
  const here = [...document.querySelectorAll("form[data-action] button, [data-clone]")].map((button) => ({ kind: "here", title: button.textContent.trim(), detail: document.querySelector("h1")?.textContent ?? "", button }));
  const found = [...here, ...recent()].filter((hit) => `${hit.title} ${hit.detail}`.toLowerCase().includes(wanted));
  return wanted ? found.slice(0, 5) : found;
}

async function ask(text) {
  const number = (asked += 1);
  const answer = await fetch(`/api/v1/search?q=${encodeURIComponent(text.trim())}`).catch(() => null);
  if (number !== asked || !answer?.ok) return;
  const { results } = await answer.json();
  const own = matching(text);
  const known = new Set(own.map((hit) => hit.url).filter(Boolean));
  show([...own, ...results.filter((hit) => !known.has(hit.url))]);
}

function show(found) {
  hits = found;
  at = 0;
  document.getElementById("palette-hits").replaceChildren(...found.map(item));
  document.getElementById("palette-none").hidden = found.length > 0;
  mark();
}

function item(hit, index) {
  const element = document.createElement("li");
  element.id = `palette-${index}`;
  element.setAttribute("role", "option");
  const title = document.createElement("bdi");
  title.textContent = hit.title;
  const detail = document.createElement("span");
  detail.className = "quiet small end cut";
  detail.textContent = hit.detail;
  element.append(icon(ICONS[hit.kind] ?? "jobs"), title, detail);
  return element;
}

function mark() {
  const items = [...document.getElementById("palette-hits").children];
  items.forEach((one, index) => one.setAttribute("aria-selected", index === at));
  dialog.querySelector("input").setAttribute("aria-activedescendant", items[at]?.id ?? "");
  items[at]?.scrollIntoView({ block: "nearest" });
}

async function run(hit) {
  dialog.close();
  if (hit.button) return hit.button.click();
  if (hit.url) {
    remember(hit);
    location.href = hit.url;
    return undefined;
  }
  const { method, path, body, confirm: question } = hit.action;
  if (question && !(await agreed(question, hit.title))) return undefined;
  if (await send(method, path, body)) toast(`${hit.title}: done.`);
  return undefined;
}

function agreed(question, name) {
  return new Promise((resolve) => {
    const asking = document.createElement("dialog");
    asking.className = "dialog";
    asking.setAttribute("aria-label", name);
    const words = Object.assign(document.createElement("p"), { textContent: question });
    const buttons = document.createElement("div");
    buttons.className = "row";
    for (const [label, is] of [[name, true], ["Leave it", false]]) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
      button.addEventListener("click", () => { resolve(is); asking.close(); });
      buttons.append(button);
    }
    asking.append(words, buttons);
    asking.addEventListener("close", () => { resolve(false); asking.remove(); });
    document.body.append(asking);
    asking.showModal();
  });
}

function recent() {
  try {
    return JSON.parse(localStorage.getItem(RECENT_KEY) ?? "[]").filter((hit) => typeof hit?.title === "string" && /^\/(?!\/)/.test(hit.url));
  } catch {
    return []; // what another hand wrote there
  }
}

function remember({ kind, title, detail, url }) {
  const kept = [{ kind, title, detail, url }, ...recent().filter((hit) => hit.url !== url)].slice(0, MOST_RECENT);
  localStorage.setItem(RECENT_KEY, JSON.stringify(kept));
}
