// Pushes files to a dataset of the reader's own, in parts; goes on after a dropped connection, and with the same files later.
import { call, toast } from "./actions.js";
import { by, say, write } from "./dom.js";
import "./shell.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
const form = by("upload");
const bar = by("upload-bar");
const state = by("upload-state");
let busy = false;

addEventListener("beforeunload", (event) => busy && event.preventDefault());

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (busy) return;
  const inFolder = [...form.elements.folder.files];
  const files = inFolder.length ? inFolder : [...form.elements.files.files];
  if (!files.length) return write(state, say("Choose files or a folder first."));
  setBusy(true);
  try {
    const made = await push(form.elements.name.value, files, !inFolder.length && files.length === 1);
    setBusy(false);
    location.assign("/datasets?q=" + encodeURIComponent(made.name));
  } catch (error) {
    setBusy(false);
    write(state, error.message);
    toast(error.message, { bad: true });
  }
});

function setBusy(is) {
  busy = is;
  bar.hidden = !is;
  form.querySelector("button").disabled = is;
}

async function push(name, files, isFile) {
  const named = new Map(files.map((file) => [pathOf(file), file]));
  const listed = [...named].map(([path, file]) => [path, file.size, "", String(file.lastModified)]);
  const body = JSON.stringify({ name, is_file: isFile, files: listed });
  for (;;) {
    const answer = await ask("POST", "/api/v1/uploads", body, "application/json");
    if (answer.dataset) return answer.dataset;
    const total = answer.missing.reduce((sum, one) => sum + one.size_bytes, 0);
    let before = 0;
    for (const one of answer.missing) {
      await sendFile(named.get(one.path), one, answer.part_bytes, (sent) => show(before + sent, total));
      before += one.size_bytes;
    }
  }
}

// Of a chosen folder without its own name.
function pathOf(file) {
  return file.webkitRelativePath.split("/").slice(1).join("/") || file.name;
}

async function sendFile(file, { key, sent_bytes: here, size_bytes }, partBytes, tell) {
  do {
    tell(here);
    const query = new URLSearchParams({ offset: here, size_bytes });
    const part = file.slice(here, here + partBytes);
    const answer = await ask("PUT", `/api/v1/uploads/${key}?${query}`, part, "application/octet-stream");
    here = answer.sent_bytes;
  } while (here < size_bytes);
  tell(here);
}

function show(done, total) {
  bar.max = total || 1;
  bar.value = done;
  write(state, say("{done} of {total} MiB sent", { done: mib(done), total: mib(total) }));
}

const mib = (bytes) => (bytes / 1024 ** 2).toFixed(bytes < 10 * 1024 ** 2 ? 1 : 0);

// What may be sent twice is sent until the server answers; what it refuses is its sentence.
async function ask(method, address, body, type) {
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(LONGEST_PAUSE_MS, pause * 2)) {
    const { answer, told, detail } = await call(address, { method, body, headers: { "Content-Type": type } });
    if (answer?.ok && told) return told;
    if (answer && answer.status < 500 && answer.status !== 429)
      throw new Error(detail ?? say("The server refused the upload. Reload the page and try again."));
    write(state, say("The server cannot be reached; the upload goes on when it can."));
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
