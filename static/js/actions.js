// What is said at the bottom right, and what is done to jobs: what ends something waits for an Undo first.
import { button, by, make, say } from "./dom.js";

const MOST = 3;
const STAYS_MS = 6000;
const UNDO_MS = 5000;
export const UNANSWERED = say("The server did not answer, so nothing was changed. Try again.");
let undoLast = null;

// Errors stay until they are closed.
export function toast(text, { bad = false, action = null, staysMs = bad ? 0 : STAYS_MS } = {}) {
  const box = by("toasts");
  const element = make("div", { className: bad ? "toast is-bad" : "toast" }, make("p", { textContent: text }));
  const close = () => element.remove();
  if (action) element.append(button(action.label, () => (close(), action.run()), "is-plain"));
  if (!staysMs) element.append(button(say("Close"), close, "is-plain"));
  box.append(element);
  while (box.children.length > MOST) box.firstElementChild.remove();
  if (staysMs) setTimeout(close, staysMs);
  return close;
}

// Acts after five seconds, or at once when the page is left: leaving is not an undo.
export function soon(text, run, onUndo = () => {}) {
  const settle = () => {
    clearTimeout(timer);
    removeEventListener("pagehide", go);
    close();
    if (undoLast === undo) undoLast = null;
  };
  const go = () => {
    settle();
    run();
  };
  const undo = () => {
    settle();
    onUndo();
  };
  const close = toast(text, { action: { label: say("Undo"), run: undo }, staysMs: UNDO_MS + 1000 });
  const timer = setTimeout(go, UNDO_MS);
  addEventListener("pagehide", go);
  undoLast = undo;
}

export function undo() {
  undoLast?.();
}

// What is done already, and can be taken back while its message stands.
export function offerUndo(text, run) {
  const undo = () => {
    close();
    undoLast = null;
    return run();
  };
  const close = toast(text, { action: { label: say("Undo"), run: undo } });
  undoLast = undo;
}

// Posts a form in the background and shows the server's sentence; whether it was done.
export async function post(address, fields) {
  const body = fields instanceof FormData ? fields : new URLSearchParams(fields);
  const { answer, detail } = await call(address, {
    method: "POST",
    body,
    headers: { "X-Requested-With": "fetch" },
    keepalive: true,
  });
  toast(detail ?? UNANSWERED, { bad: !answer?.ok });
  return Boolean(answer?.ok);
}

// A change over REST, by the browser's session.
export async function send(method, address, data) {
  const { answer, detail } = await callWith(method, address, data);
  if (!answer?.ok) toast(detail ?? UNANSWERED, { bad: true });
  return Boolean(answer?.ok);
}

export function callWith(method, address, data) {
  return call(address, { method, body: JSON.stringify(data), headers: { "Content-Type": "application/json" } });
}

export async function call(address, { headers, ...options }) {
  const answer = await fetch(address, {
    ...options,
    headers: { ...headers, "X-CSRFToken": document.documentElement.dataset.csrf ?? "" },
  }).catch(() => null);
  const told = await answer?.json().catch(() => null);
  return { answer, told, detail: told?.detail };
}

// The clipboard is there over HTTPS and on this machine only.
export async function copyText(text, confirmation) {
  await navigator.clipboard.writeText(text);
  toast(confirmation);
}

// Rows of cells as a Markdown table, to the clipboard.
export function copyTable([head, ...rows]) {
  const escape = (text) => text.trim().replaceAll("|", "\\|").replace(/\s+/g, " ");
  const lines = [head, head.map(() => "---"), ...rows].map((row) => `| ${row.map(escape).join(" | ")} |`);
  return copyText(lines.join("\n"), say("The table is copied as Markdown."));
}
