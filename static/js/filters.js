// Filters that a person gave a name, kept in this browser.
const KEY = "berth-filters";

export function watchFilters() {
  const box = document.getElementById("saved-filters");
  box.hidden = false;
  box.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = event.target.elements.name.value.trim();
    if (!name) return;
    write([...read().filter((one) => one.name !== name), { name, query: location.search }]);
    event.target.reset();
    draw(box);
  });
  draw(box);
}

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter((one) => typeof one?.name === "string" && typeof one?.query === "string") : [];
  } catch {
    return []; // what another hand wrote there
  }
}

function write(filters) {
  localStorage.setItem(KEY, JSON.stringify(filters.slice(-20)));
}

function draw(box) {
  box.querySelector("ul").replaceChildren(...read().map((filter) => {
    const item = document.createElement("li");
    item.className = "row";
    const link = document.createElement("a");
    link.href = `/jobs${filter.query.startsWith("?") ? filter.query : ""}`;
    link.textContent = filter.name;
    const forget = document.createElement("button");
    forget.type = "button";
    forget.className = "is-plain";
    forget.textContent = "×";
    forget.setAttribute("aria-label", `Forget the filter ${filter.name}`);
    forget.addEventListener("click", () => { write(read().filter((one) => one.name !== filter.name)); draw(box); });
    item.append(link, forget);
    return item;
  }));
}
