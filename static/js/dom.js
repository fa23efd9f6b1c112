// Elements, made and written in one line each, and texts in the reader's language.
export const by = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...parts) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...parts);
  return element;
}

export function button(text, run, className = "") {
  const element = make("button", { type: "button", className, textContent: text });
  element.addEventListener("click", run);
  return element;
}

// What is there already is left alone: a screen reader and a selection would notice.
export function write(element, text) {
  if (element && text !== undefined && element.textContent !== text) element.textContent = text;
}

// A dialog that is gone when it closes.
export function openDialog(name, ...parts) {
  const dialog = make("dialog", { className: "dialog", ariaLabel: name }, ...parts);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// What the server answered as HTML.
export async function readPage(answer) {
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

// What this browser keeps; nothing where it keeps nothing, or what another hand wrote there.
export function readStored(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

export function store(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // The choice holds for this page.
  }
}

// In the address, so that a copied link shows the same.
export function keepInAddress(name, value) {
  const address = new URL(location.href);
  if (value) address.searchParams.set(name, value);
  else address.searchParams.delete(name);
  history.replaceState(null, "", address.href.replaceAll("%2C", ","));
}

// From the page's one sprite.
export function icon(name) {
  const box = make("i");
  box.innerHTML = `<svg class="icon" aria-hidden="true"><use href="${document.documentElement.dataset.icons}#${name}"/></svg>`;
  return box.firstChild;
}

// A page that is not in English loads its words (words-de.js) before any module.
const words = globalThis.berthWords ?? {};

export const locale = document.documentElement.lang; // of dates; numbers are written as in English everywhere

// A text with its values: say("{n} jobs chosen", { n: 1200 }). A place without a value stays, for a later say() to fill.
export function say(text, values = {}) {
  return (words[text] ?? text).replace(/\{(\w+)\}/g, (all, name) => values[name]?.toLocaleString("en") ?? all);
}

// A state as people read it: timed_out is "timed out".
export function sayState(state) {
  const words = state.replaceAll("_", " ");
  return say(words);
}
