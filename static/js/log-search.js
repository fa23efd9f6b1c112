// Search in the whole log on the server: hits by page, a place among them, marks along the scroll bar.
import { by, make, say } from "./dom.js";

const PAGE = 1000;
const PATIENCE_MS = 250;
const ERRORS = "\\b(error|critical|fatal|traceback|exception)\\b";

export class LogSearch {
  #ask;
  #show;
  #changed;
  #hits = [];
  #numbers = new Set();
  #total = 0;
  #more = false;
  #at = -1;
  #turn = 0; // answers to an older question are dropped
  #timer = 0;

  // ask(query) searches, show(number) brings a line into view, changed() redraws.
  constructor(box, ask, show, changed) {
    this.#ask = ask;
    this.#show = show;
    this.#changed = changed;
    const parts = { field: "search", regex: "regex", letters: "case", told: "hits", marks: "marks" };
    for (const [name, id] of Object.entries(parts)) this[name] = by(`log-${id}`);
    this.field.addEventListener("input", () => this.#soon());
    for (const choice of [this.regex, this.letters]) choice.addEventListener("change", () => this.#soon());
    this.field.addEventListener("keydown", (event) => this.#key(event));
    by("log-next").addEventListener("click", () => this.#step(1));
    by("log-previous").addEventListener("click", () => this.#step(-1));
    by("log-errors").addEventListener("click", () => {
      this.regex.checked = true;
      this.field.value = ERRORS;
      this.#start();
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === "f" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.field.focus();
        this.field.select();
      }
    });
  }

  get current() {
    return this.#hits[this.#at]?.number;
  }

  has(number) {
    return this.#numbers.has(number);
  }

  forget() {
    this.#turn += 1;
    this.#hits = [];
    this.#numbers.clear();
    this.#at = -1;
    this.#tell("");
  }

  #soon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#start(), PATIENCE_MS);
  }

  #key(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      if (this.#hits.length) this.#step(event.shiftKey ? -1 : 1);
      else this.#start();
    } else if (event.key === "Escape") {
      this.field.value = "";
      this.forget();
      this.#changed();
    }
  }

  async #start() {
    clearTimeout(this.#timer); // Enter does not wait, and the same search a moment later would jump back
    this.forget();
    if (!this.field.value) return this.#changed();
    const answer = await this.#page(0);
    if (!answer) return undefined;
    if (answer.problem) return this.#tell(answer.problem);
    this.#total = answer.total;
    this.#more = answer.more;
    this.#take(answer.hits);
    if (this.#hits.length) return this.#step(1);
    return this.#tell(say("not found"));
  }

  async #page(from) {
    const turn = this.#turn;
    const answer = await this.#ask({
      q: this.field.value,
      regex: this.regex.checked,
      case: this.letters.checked,
      from,
      limit: PAGE,
    });
    return turn === this.#turn ? answer : null;
  }

  #take(hits) {
    this.#hits.push(...hits);
    for (const hit of hits) this.#numbers.add(hit.number);
    this.#drawMarks();
  }

  async #step(by) {
    if (!this.#hits.length) return;
    let at = this.#at + by;
    if (at >= this.#hits.length && this.#hits.length < this.#total) {
      const answer = await this.#page(this.#hits.at(-1).number + 1);
      if (answer?.hits?.length) this.#take(answer.hits);
    }
    if (at < 0) at = this.#hits.length - 1;
    this.#at = at % this.#hits.length;
    this.#tell(say(this.#more ? "{n} of {all} or more" : "{n} of {all}", { n: this.#at + 1, all: this.#total }));
    this.#show(this.current);
  }

  #tell(text) {
    this.told.textContent = text;
    if (!text) this.marks.replaceChildren();
  }

  // One mark for each of at most 200 places.
  #drawMarks() {
    const last = Math.max(1, Number(this.marks.dataset.total) || this.#hits.at(-1)?.number || 1);
    const places = new Set(this.#hits.map((hit) => Math.round((hit.number / last) * 200)));
    this.marks.replaceChildren(
      ...[...places].map((place) => {
        const mark = make("i");
        mark.style.top = `${place / 2}%`;
        return mark;
      }),
    );
  }
}
