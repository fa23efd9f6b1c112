// A long table in windows: chunks of rows around what is in sight, each in its place, blank room for the others, curves when it rests.
import { by, make, say, write } from "./dom.js";

const CHUNK = 25; // a screen has some 45 rows; what is painted in a frame grows with the rows in the page
const KEEPS = 5; // chunks in the page
const AHEAD = 1; // chunks read beyond the edge
const REST_MS = 120;
const RELOAD_MS = 1000;

export function showTotal(total) {
  write(by("total"), total.toLocaleString("en"));
  by("choose-all").textContent = say("All {n}", { n: total });
}

export class JobRows {
  wanted = [0, 0]; // chunks in sight
  #chunks = new Map(); // tbody by its number
  #gaps = new Map(); // blank tbody before the chunk of this number
  #asked = new Set();
  #frame = 0;
  #rest = 0;
  #still = 0;
  #reload = 0;
  #stopped = new AbortController();

  constructor(section, afterwards) {
    this.section = section;
    this.table = section.querySelector(".jobs-table");
    this.afterwards = afterwards;
    this.total = Number(section.dataset.total);
    const first = this.table.tBodies[0];
    this.height = first.rows[0]?.getBoundingClientRect().height || 20;
    this.below = this.#blank();
    this.table.append(this.below);
    this.#split(first);
    const { signal } = this.#stopped;
    const look = () => {
      this.#frame ||= requestAnimationFrame(() => this.#look());
    };
    addEventListener("scroll", () => (this.#move(), look()), { passive: true, signal });
    addEventListener("resize", () => this.#measure(), { signal });
    this.table.addEventListener("focusin", ({ target }) => this.#rove(target.closest("tr")), { signal });
    this.table.addEventListener("keydown", (event) => this.#step(event), { signal });
    this.#rove(first.rows[0]);
    this.#settle();
    look();
  }

  stop() {
    this.#stopped.abort();
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#rest);
    clearTimeout(this.#still);
    clearTimeout(this.#reload);
  }

  #move() {
    clearTimeout(this.#still);
    this.table.classList.add("is-moving");
    this.#still = setTimeout(() => this.table.classList.remove("is-moving"), REST_MS);
  }

  // The chunks in the page are read again, at most once a second.
  reload() {
    this.#reload ||= setTimeout(
      async () => {
        for (const number of [...this.#chunks.keys()]) await this.#read(number);
        this.#reload = 0;
      },
      RELOAD_MS + Math.random() * 200,
    );
  }

  #blank() {
    return make("tbody", { ariaHidden: "true" }, make("tr"));
  }

  #measure() {
    const row = [...this.#chunks.values()][0]?.rows[0];
    this.height = row?.getBoundingClientRect().height || this.height;
    this.#room();
    this.#look();
  }

  #look() {
    this.#frame = 0;
    const last = Math.max(0, Math.ceil(this.total / CHUNK) - 1);
    const top = -this.table.getBoundingClientRect().top - this.table.tHead.offsetHeight;
    const at = (y) => Math.min(last, Math.max(0, Math.floor(y / this.height / CHUNK)));
    const [from, to] = [Math.max(0, at(top) - AHEAD), Math.min(last, at(top + innerHeight) + AHEAD)];
    this.wanted = [from, to];
    const numbers = Array.from({ length: to - from + 1 }, (_, index) => from + index);
    for (const number of numbers) if (!this.#chunks.has(number) && !this.#asked.has(number)) this.#read(number);
    // What is in sight is never dropped, or it would be read again at once.
    const away = (number) => Math.max(from - number, number - to);
    const far = [...this.#chunks.keys()].filter((number) => away(number) > 0).sort((a, b) => away(b) - away(a));
    this.#drop(far.slice(0, Math.max(0, this.#chunks.size - KEEPS)));
    this.#room();
  }

  async #read(number) {
    this.#asked.add(number);
    const before = this.section.dataset.sort === "-submitted" ? this.#chunks.get(number - 1) : null;
    const query = new URLSearchParams(this.section.dataset.query);
    query.set("from", number * CHUNK);
    query.set("count", CHUNK);
    if (before && before.rows.length === CHUNK) query.set("before", [...before.rows].at(-1).dataset.id);
    const answer = await fetch(`/jobs/rows?${query}`, { signal: this.#stopped.signal }).catch(() => null);
    const text = answer?.ok ? await answer.text().catch(() => null) : null;
    this.#asked.delete(number);
    // One may have scrolled on since.
    const isFar = number < this.wanted[0] || number > this.wanted[1];
    if (this.#stopped.signal.aborted || (isFar && !this.#chunks.has(number))) return;
    this.section.toggleAttribute("data-broken", text === null);
    if (text === null) return;
    this.#count(Number(answer.headers.get("X-Total")));
    this.#keep(number, make("tbody", { innerHTML: text }));
    this.afterwards();
    this.#settle();
  }

  #count(total) {
    if (total === this.total) return;
    this.total = total;
    this.section.dataset.total = total;
    this.table.ariaRowCount = total;
    showTotal(total);
  }

  // What the page came with, in chunks as they are read later.
  #split(first) {
    const rows = [...first.rows];
    this.#keep(0, first);
    for (let from = CHUNK; from < rows.length; from += CHUNK)
      this.#keep(from / CHUNK, make("tbody", {}, ...rows.slice(from, from + CHUNK)));
  }

  // In its place among its neighbours; the focus stays on the row that had it.
  #keep(number, body) {
    const old = this.#chunks.get(number);
    const focused = old?.contains(document.activeElement) && document.activeElement.closest("tr")?.dataset.job;
    for (const [index, row] of [...body.rows].entries()) {
      row.ariaRowIndex = number * CHUNK + index + 1;
      this.#tabs(row, -1);
    }
    if (old && old !== body) this.#carry(old, body);
    if (old) old.replaceWith(body);
    else if (!body.isConnected) (this.#next(number) ?? this.below).before(body);
    this.#chunks.set(number, body);
    const row = focused && body.querySelector(`tr[data-job="${CSS.escape(focused)}"]`);
    if (row) row.querySelector("th a").focus({ preventScroll: true });
    else if (!this.row?.isConnected) this.#rove(body.rows[0]);
    this.#room();
  }

  #next(number) {
    const later = [...this.#chunks.keys()].filter((one) => one > number);
    return later.length ? this.#chunks.get(Math.min(...later)) : null;
  }

  // Curves that are drawn stay until newer ones come.
  #carry(old, body) {
    for (const svg of body.querySelectorAll("[data-curve]")) {
      const drawn = old.querySelector(`[data-curve="${svg.dataset.curve}"] path`)?.getAttribute("d");
      if (drawn) svg.firstElementChild.setAttribute("d", drawn);
    }
  }

  #drop(numbers) {
    for (const number of numbers) {
      const body = this.#chunks.get(number);
      if (body.contains(document.activeElement)) continue;
      body.remove();
      this.#chunks.delete(number);
    }
  }

  // Blank room for the rows that are not in the page: before each chunk, and behind the last one.
  #room() {
    let end = 0;
    for (const number of [...this.#chunks.keys()].sort((a, b) => a - b)) {
      this.#gap(number, number * CHUNK - end);
      end = (number + 1) * CHUNK;
    }
    for (const number of this.#gaps.keys()) if (!this.#chunks.has(number)) this.#gap(number, 0);
    this.#stretch(this.below, this.total - end);
  }

  #gap(number, rows) {
    const gap = this.#gaps.get(number) ?? this.#blank();
    if (rows > 0) {
      this.#gaps.set(number, gap);
      this.#stretch(gap, rows);
      const body = this.#chunks.get(number);
      if (body.previousSibling !== gap) body.before(gap);
    } else {
      this.#gaps.delete(number);
      gap.remove();
    }
  }

  #stretch(body, rows) {
    const height = `${rows * this.height}px`;
    body.hidden = rows <= 0;
    if (body.rows[0].style.height !== height) body.rows[0].style.height = height;
  }

  #settle() {
    clearTimeout(this.#rest);
    this.#rest = setTimeout(() => this.#drawCurves(), REST_MS);
  }

  async #drawCurves() {
    const shown = [...this.table.querySelectorAll("[data-curve]")].filter(({ parentElement: cell }) => {
      const { top, bottom, width } = cell.getBoundingClientRect();
      return width && bottom > -innerHeight && top < 2 * innerHeight;
    });
    const wanted = shown.filter(({ firstElementChild: path, dataset }) => !path.getAttribute("d") || dataset.live).slice(0, 100);
    if (!wanted.length) return;
    const ids = wanted.map(({ dataset }) => dataset.curve).join();
    const answer = await fetch(`/jobs/curves?jobs=${ids}`, { signal: this.#stopped.signal }).catch(() => null);
    const paths = answer?.ok ? await answer.json().catch(() => ({})) : {};
    for (const svg of wanted) if (paths[svg.dataset.curve]) svg.firstElementChild.setAttribute("d", paths[svg.dataset.curve]);
  }

  // One row is in the tab order, the one looked at last; arrows move.
  #rove(row) {
    if (!row?.dataset.job || row === this.row) return;
    if (this.row) this.#tabs(this.row, -1);
    this.row = row;
    this.#tabs(row, 0);
  }

  #tabs(row, index) {
    for (const one of row.querySelectorAll("input, th > a:first-child, button")) one.tabIndex = index;
  }

  #step(event) {
    const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("tr[data-job]");
    if (!down || !row || event.altKey || event.ctrlKey || event.metaKey) return;
    const rows = [...this.table.querySelectorAll("tr[data-job]")];
    const next = rows[rows.indexOf(row) + down];
    if (!next) return;
    event.preventDefault();
    next.querySelector("th a").focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }
}
