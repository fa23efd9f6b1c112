// The table of jobs, live: the filters swap it through htmx; jobs are chosen with Space or the boxes, then one thing for all of them.
import { post, soon } from "./actions.js";
import { button, by, store, readStored, make } from "./dom.js";
import { onRefresh, refresh, watchRows } from "./rows.js";
import "./shell.js";

const FILTERS_KEY = "berth-filters";
const form = by("bulk");
const chosen = new Map(); // id by its box's value, kept over refreshes

function watchChoices() {
  document.addEventListener("change", (event) => event.target.matches("[data-choose]") && remember(event.target));
  form.addEventListener("submit", act);
  by("choose-none").addEventListener("click", clear);
  onRefresh(restore);
  document.body.addEventListener("htmx:afterSwap", restore);
  for (const box of boxes()) if (box.checked) chosen.set(box.value, box.dataset.choose);
  show();
}

function boxes() {
  return document.querySelectorAll("[data-choose]");
}

function remember(box) {
  if (box.checked) chosen.set(box.value, box.dataset.choose);
  else chosen.delete(box.value);
  show();
}

function restore() {
  for (const box of boxes()) box.checked = chosen.has(box.value);
  show();
}

function clear() {
  chosen.clear();
  restore();
}

function show() {
  form.hidden = chosen.size === 0;
  by("chosen-count").textContent = `${chosen.size} chosen`;
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
  for (const id of chosen.keys()) fields.append("job", id);
  const count = chosen.size;
  const run = async () => {
    await post(form.action, fields);
    clear();
    refresh("jobs");
  };
  if (action === "cancel") return soon(`Cancelling ${count} job${count > 1 ? "s" : ""} in 5 s.`, run);
  return run();
}

// Filters that a person gave a name, kept in this browser.
function watchFilters() {
  document.querySelector("#saved-filters form").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = event.target.elements.name.value.trim();
    if (!name) return;
    keepFilters([...savedFilters().filter((one) => one.name !== name), { name, query: location.search }]);
    event.target.reset();
  });
  drawFilters();
}

function savedFilters() {
  const filters = readStored(FILTERS_KEY);
  return (Array.isArray(filters) ? filters : []).filter(
    (one) => typeof one?.name === "string" && typeof one?.query === "string",
  );
}

function keepFilters(filters) {
  store(FILTERS_KEY, filters.slice(-20));
  drawFilters();
}

function drawFilters() {
  document.querySelector("#saved-filters ul").replaceChildren(
    ...savedFilters().map(({ name, query }) => {
      const remove = button("×", () => keepFilters(savedFilters().filter((one) => one.name !== name)), "is-plain");
      remove.ariaLabel = `Delete the filter ${name}`;
      return make(
        "li",
        { className: "row" },
        make("a", { href: `/jobs${query.startsWith("?") ? query : ""}`, textContent: name }),
        remove,
      );
    }),
  );
}

watchRows("jobs", ["jobs"]);
watchChoices();
watchFilters();
