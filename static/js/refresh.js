// Draws parts of the page anew from the server's HTML, when more than numbers changed.
const REST_MS = 1000;
let last = 0;
let timer = 0;
let wanted = new Set();
const afterwards = [];

export function onRefresh(run) {
  afterwards.push(run);
}

export function refresh(...ids) {
  for (const id of ids) wanted.add(id);
  if (timer) return;
  // The jitter keeps a hundred open pages from asking at the same moment.
  timer = setTimeout(fetchAll, Math.max(0, last + REST_MS - Date.now()) + Math.random() * 200);
}

async function fetchAll() {
  const ids = [...wanted];
  wanted = new Set();
  last = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { "X-Requested-With": "refresh" } });
    if (answer.ok && !answer.redirected) replace(new DOMParser().parseFromString(await answer.text(), "text/html"), ids);
  } catch {
    // Offline: the socket's sign says so, and its next snapshot brings us here again.
  } finally {
    timer = 0;
    if (wanted.size) refresh();
  }
}

function replace(page, ids) {
  const focused = document.activeElement;
  const path = focused?.closest("form[action]")?.getAttribute("action") ?? focused?.getAttribute("href");
  const open = [...document.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
  for (const id of ids) {
    const [now, then] = [page.getElementById(id), document.getElementById(id)];
    if (now && then && !then.contains(document.activeElement?.matches("input,select,textarea") ? document.activeElement : null)) then.replaceWith(document.adoptNode(now));
  }
  for (const summary of document.querySelectorAll("details > summary")) if (open.includes(summary.textContent)) summary.parentElement.open = true;
  if (path && !document.contains(focused)) refocus(path);
  for (const run of afterwards) run(ids);
}

function refocus(path) {
  const place = CSS.escape(path);
  document.querySelector(`form[action="${place}"] button, a[href="${place}"]`)?.focus({ preventScroll: true });
}
