// The table of jobs, live: its address says what it shows; rows come in windows as one scrolls; jobs are chosen, then changed together.
import { call, post, soon, toast, UNANSWERED } from "./actions.js";
import { by, readPage, say } from "./dom.js";
import { JobRows, showTotal } from "./job-rows.js";
import { watchPeek } from "./job-peek.js";
import { onRefresh, refresh, watchRows } from "./rows.js";
import "./shell.js";

const TYPING_MS = 250;
const form = by("bulk");
const ADDRESS = form.getAttribute("action"); // form.action is its buttons of that name
const filters = by("filters");
const usual = [...filters.querySelectorAll("[name=col]:checked")].map((box) => box.value).join();
const chosen = new Map(); // id by its box's value, kept over refreshes and windows
let all = null; // the table whose every job is chosen: its query, the newest job, and how many there are
let rows = null;
let typing = 0;
let asked = 0;

function attach() {
  rows?.stop();
  const section = by("jobs");
  showTotal(Number(section.dataset.total));
  rows = section.querySelector(".jobs-table") && new JobRows(section, restore);
  restore();
}

// The table as the controls ask for it, without loading the page.
function wanted() {
  const fields = new URLSearchParams([...new FormData(filters)].filter(([name, value]) => value && name !== "col"));
  const columns = [...filters.querySelectorAll("[name=col]:checked")].map((box) => box.value).join();
  const given = new URLSearchParams(location.search).get("cols");
  if (given !== null || columns !== usual) fields.set("cols", columns);
  return fields.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
}

async function open(query, { push = true } = {}) {
  const number = (asked += 1);
  by("jobs").ariaBusy = "true";
  const address = query ? `/jobs?${query}` : "/jobs";
  const answer = await fetch(address, { headers: { "X-Requested-With": "refresh" } }).catch(() => null);
  if (number !== asked) return;
  by("jobs").ariaBusy = null;
  if (!answer?.ok || answer.redirected) {
    toast(say("The jobs could not be read. Try again."), { bad: true });
    return;
  }
  const page = await readPage(answer);
  if (number !== asked) return;
  if (push) history.pushState(null, "", address);
  by("jobs").replaceWith(document.adoptNode(page.getElementById("jobs")));
  by("save-view").elements.query.value = page.getElementById("save-view").elements.query.value;
  form.elements.back.value = address;
  copyChoices(page);
  clear();
  attach();
  scrollTo({ top: 0 });
}

// What another order, group or filter offers; what is typed into stays as it is.
function copyChoices(page) {
  const then = page.getElementById("filters");
  for (const name of ["sort", "array", "sweep", "arg", "by"]) {
    const [now, next] = [filters.elements[name], then.elements[name]];
    if (now && next) now.replaceWith(document.adoptNode(next));
    else if (next) filters.prepend(document.adoptNode(next));
    else now?.remove();
  }
  if (!by("columns-menu").open) by("columns").replaceWith(document.adoptNode(page.getElementById("columns")));
}

function watchFilters() {
  filters.addEventListener("submit", (event) => {
    event.preventDefault();
    open(wanted());
  });
  filters.addEventListener("change", ({ target }) => target.type !== "search" && open(wanted()));
  by("q").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => open(wanted()), TYPING_MS);
  });
  by("columns-menu").addEventListener("click", ({ target }) => {
    const { first } = target.dataset;
    if (!first) return;
    const item = target.closest("li");
    item.parentElement.prepend(item);
    item.querySelector("input").checked = true;
    target.focus();
    open(wanted());
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#jobs :is(thead, .groups, .badge, .empty) a[href^='?']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.getAttribute("href").slice(1)).then(() => matchControls());
  });
  addEventListener("popstate", () => location.reload());
}

function matchControls() {
  const address = new URLSearchParams(location.search);
  for (const name of ["q", "state", "pool", "owner", "tag", "project", "group"])
    if (filters.elements[name]) filters.elements[name].value = address.get(name) ?? "";
}

function watchChoices() {
  document.addEventListener("change", (event) => event.target.matches("[data-choose]") && remember(event.target));
  form.addEventListener("submit", act);
  by("choose-none").addEventListener("click", clear);
  by("choose-all").addEventListener("click", chooseAll);
  for (const box of boxes()) if (box.checked) chosen.set(box.value, box.dataset.choose);
}

function boxes() {
  return document.querySelectorAll("[data-choose]");
}

function remember(box) {
  all = null;
  if (box.checked) chosen.set(box.value, box.dataset.choose);
  else chosen.delete(box.value);
  restore();
}

function chooseAll() {
  const { total, query } = by("jobs").dataset;
  all = { matching: query, until: by("jobs").dataset.newest, count: Number(total) };
  restore();
}

function restore() {
  for (const box of boxes()) {
    box.checked = all !== null || chosen.has(box.value);
    box.closest("tr").classList.toggle("is-chosen", box.checked);
  }
  show();
}

function clear() {
  all = null;
  chosen.clear();
  restore();
}

function show() {
  const count = all?.count ?? chosen.size;
  form.hidden = count === 0;
  form.dataset.ready = "";
  by("chosen-count").textContent = say("{n} chosen", { n: count });
  form.querySelector("[value=compare]").disabled = all !== null;
}

function compareChosen() {
  const ids = [...chosen.keys()].map((id) => id.slice(-8));
  if (ids.length) location.href = `/compare?jobs=${ids.join(",")}`;
}

function act(event) {
  const action = event.submitter?.value;
  event.preventDefault();
  if (action === "compare") return compareChosen();
  const fields = new FormData(form);
  fields.set("action", action);
  const count = all?.count ?? chosen.size;
  const chosenTable = all;
  if (!all) for (const id of chosen.keys()) fields.append("job", id);
  const run = async () => {
    if (chosenTable) await changeAll(fields, chosenTable);
    else await post(ADDRESS, fields);
    clear();
    redraw();
  };
  const isOne = count === 1;
  if (action === "cancel")
    return soon(say(isOne ? "Cancelling {n} job in 5 s." : "Cancelling {n} jobs in 5 s.", { n: count }), run);
  if (chosenTable) return soon(say(isOne ? "Changing {n} job in 5 s." : "Changing {n} jobs in 5 s.", { n: count }), run);
  return run();
}

// The server changes a part of them in each request, so that none takes long.
async function changeAll(fields, { matching, until, count }) {
  fields.set("matching", matching);
  fields.set("until", until);
  let [done, refused] = [0, 0];
  for (let left = count; left > 0; ) {
    const close = toast(say("{n} of {all} done.", { n: count - left, all: count }));
    const headers = { "X-Requested-With": "fetch" };
    const { answer, told } = await call(ADDRESS, { method: "POST", body: fields, headers });
    close();
    if (!told || told.last === undefined) return toast(told?.detail ?? UNANSWERED, { bad: true });
    done += told.done;
    refused += told.refused;
    left = told.last ? told.left : 0;
    fields.set("last", told.last);
    if (!answer) break;
  }
  const rest = refused ? ` ${say("{n} could not be changed.", { n: refused })}` : "";
  return toast(say("{n} jobs changed.", { n: done }) + rest, { bad: !done });
}

// More than numbers changed: the rows in sight are read again where they stand.
function redraw() {
  if (rows) rows.reload();
  else refresh("jobs");
}

watchRows("jobs", ["jobs"], { redraw });
onRefresh(attach);
document.addEventListener("job-edited", redraw);
watchChoices();
watchFilters();
watchPeek();
attach();
