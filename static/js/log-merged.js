// The lines of all ranks by number, in the order in which they were seen; asked for anew while the job prints.
const PAGE = 200;
const MOST_PAGES = 20;
const DROPPED = "[dropped]";
const OFTEN_MS = 1000;
const SELDOM_MS = 5000;

export class MergedLines {
  #address;
  #attempt;
  #changed;
  #pages = new Map(); // page number to its lines, oldest use first
  #asked = new Set();
  #timer = 0;
  #isClosed = false;
  total = 0;

  constructor(job, { attempt }, changed) {
    this.#address = `/api/v1/jobs/${job}/logs/merged`;
    this.#attempt = attempt;
    this.#changed = changed;
  }

  async start() {
    const before = this.total;
    const answer = document.hidden && before ? null : await this.#read("", { from: -PAGE, count: PAGE });
    if (this.#isClosed) return;
    if (answer) {
      this.total = answer.total;
      this.#keep(answer.lines);
      if (this.total > before || !before) this.#changed(before ? this.total - before : 0);
    }
    this.#timer = setTimeout(() => this.start(), this.total > before ? OFTEN_MS : SELDOM_MS);
  }

  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  // The text of a line; null while it is being fetched.
  get(number) {
    return this.#line(number)?.text ?? null;
  }

  // { rank, seen_at } of a line that is there.
  source(number) {
    return this.#line(number);
  }

  async search(query) {
    return this.#read("/search", query);
  }

  #line(number) {
    const page = Math.floor(number / PAGE);
    const line = this.#pages.get(page)?.get(number);
    if (line === undefined) this.#fetch(page);
    return line;
  }

  async #fetch(page) {
    if (this.#asked.has(page)) return;
    this.#asked.add(page);
    const answer = await this.#read("", { from: page * PAGE, count: PAGE });
    this.#asked.delete(page);
    if (!answer?.lines || this.#isClosed) return;
    // What the log's limit has dropped is told so, or it would be asked for again and again.
    const last = Math.min((page + 1) * PAGE, this.total);
    for (let number = page * PAGE; number < last; number += 1) this.#put({ number, text: DROPPED });
    this.#keep(answer.lines);
    this.#changed(0);
  }

  #keep(lines) {
    for (const line of lines) this.#put(line);
  }

  #put(line) {
    const page = Math.floor(line.number / PAGE);
    const lines = this.#pages.get(page) ?? new Map();
    this.#pages.delete(page); // used last
    this.#pages.set(page, lines.set(line.number, line));
    while (this.#pages.size > MOST_PAGES) this.#pages.delete(this.#pages.keys().next().value);
  }

  async #read(what, query) {
    const answer = await fetch(`${this.#address}${what}?${new URLSearchParams({ attempt: this.#attempt, ...query })}`).catch(() => null);
    const body = await answer?.json().catch(() => null);
    if (answer?.ok) return body;
    return what ? { problem: body?.errors?.q?.[0] ?? body?.detail ?? "The server does not answer." } : null;
  }
}
