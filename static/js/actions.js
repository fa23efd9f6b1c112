// What is done to jobs from the pages; what ends something waits for an Undo first.
import { toast } from "./toast.js";

const UNDO_MS = 5000;
let undoLast = null;

// Acts after five seconds, or at once when the page is left: leaving is not an undo.
export function soon(text, run, onUndo = () => {}) {
  const settle = () => {
    clearTimeout(timer);
    removeEventListener("pagehide", go);
    note.close();
    if (undoLast === undo) undoLast = null;
  };
  const go = () => { settle(); run(); };
  const undo = () => { settle(); onUndo(); };
  const note = toast(text, { action: { label: "Undo", run: undo }, staysMs: UNDO_MS + 1000 });
  const timer = setTimeout(go, UNDO_MS);
  addEventListener("pagehide", go);
  undoLast = undo;
}

export function undo() {
  undoLast?.();
}

// Posts a form in the background and shows the server's sentence; whether it was done.
export async function post(address, fields) {
  const body = fields instanceof FormData ? fields : new URLSearchParams(fields);
  try {
    const answer = await fetch(address, { method: "POST", body, headers: { "X-Requested-With": "fetch", "X-CSRFToken": token() }, keepalive: true });
    const { detail } = await answer.json();
    toast(detail, { bad: !answer.ok });
    return answer.ok;
  } catch {
    toast("The server did not answer, so nothing was changed. Try again.", { bad: true });
    return false;
  }
}

// A change over REST, by the browser's session.
export async function send(method, address, data) {
  const answer = await fetch(address, { method, body: JSON.stringify(data), headers: { "Content-Type": "application/json", "X-CSRFToken": token() } }).catch(() => null);
  if (answer?.ok) return true;
  const problem = await answer?.json().catch(() => null);
  toast(problem?.detail ?? "The server did not answer, so nothing was changed. Try again.", { bad: true });
  return false;
}

function token() {
  return document.documentElement.dataset.csrf ?? "";
}
