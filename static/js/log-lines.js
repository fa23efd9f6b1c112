// The lines of a log by number: pages of them over REST, never more than a few in memory.
import { say } from "./dom.js";
import { live } from "./socket.js";

const PAGE = 200;
const MOST_PAGES = 160; // more than a window has rows: between folded groups each may be of another page
const MOST_READ = 5000; // at once
const OFTEN_MS = 1000;
const SELDOM_MS = 5000;
const SOCKET_MS = 1000;
const AGAIN_MS = 1000;

class Pages {
  _total = 0; // lines that are whole
  _isClosed = false;
  #places; // { lines, search }: where each is asked for
  #query;
  #pages = new Map(); // page number to its lines by number, oldest use first
  #asked = new Set();

  // changed(added, texts) is called whenever there is something else to show; texts are the added lines where they are known.
  constructor(places, query, changed) {
    this.#places = places;
    this.#query = query;
    this._changed = changed;
  }

  get total() {
    return this._total;
  }

  get whole() {
    return this._total; // without a line that has no end yet
  }

  // { text }, of all ranks { rank, seen_at } too; undefined while it is being fetched.
  get(number) {
    const page = Math.floor(number / PAGE);
    const line = this.#pages.get(page)?.get(number);
    if (!line) this.#fetch(page);
    return line;
  }

  // { total, more, hits }, or { problem } in words.
  async search(query) {
    const { isOk, body } = await this.#read("search", query);
    return isOk ? body : { problem: body?.errors?.q?.[0] ?? body?.detail ?? say("The server does not answer.") };
  }

  // The lines from first to last as one text; null where the server does not answer.
  async text(first, last) {
    const texts = [];
    while (first <= last) {
      const { isOk, body } = await this.#read("lines", { from: first, count: Math.min(MOST_READ, last - first + 1) });
      if (!isOk) return null;
      if (!body.lines.length) break;
      texts.push(...body.lines.map((line) => line.text));
      first = body.lines.at(-1).number + 1;
    }
    return texts.join("\n");
  }

  // Nothing where there is no answer.
  async _read(from) {
    const { isOk, body } = await this.#read("lines", { from, count: PAGE });
    return isOk && body;
  }

  _put(line) {
    const page = Math.floor(line.number / PAGE);
    const lines = this.#pages.get(page) ?? new Map();
    this.#pages.delete(page); // used last
    this.#pages.set(page, lines.set(line.number, line));
    while (this.#pages.size > MOST_PAGES) this.#pages.delete(this.#pages.keys().next().value);
  }

  _forget() {
    this.#pages.clear();
  }

  async #fetch(page) {
    if (this.#asked.has(page)) return;
    this.#asked.add(page);
    const answer = await this._read(page * PAGE);
    this.#asked.delete(page);
    if (!answer || this._isClosed) return;
    // What the log's limit has dropped is told so, or it would be asked for again and again.
    const last = Math.min((page + 1) * PAGE, this._total);
    for (let number = page * PAGE; number < last; number += 1) this._put({ number, text: say("[dropped]") });
    for (const line of answer.lines) if (line.number < this._total) this._put(line);
    this._changed(0);
  }

  async #read(what, query) {
    const answer = await fetch(`${this.#places[what]}?${new URLSearchParams({ ...this.#query, ...query })}`).catch(
      () => null,
    );
    return { isOk: answer?.ok, body: await answer?.json().catch(() => null) };
  }
}

// One rank's: new lines come from the socket.
export class RankLines extends Pages {
  #open = ""; // the last line, while it has no newline
  #end = 0; // the byte behind the last whole line
  #readTo = 0; // with what there is of the open line, which the socket sends again
  #isSentAgain = false;
  #topic;
  #timer = 0;
  #waiting = new Map(); // who asked the socket for lines, by the first of them

  constructor(job, place, changed) {
    const logs = `/api/v1/jobs/${job}/logs`;
    super({ lines: `${logs}/lines`, search: `${logs}/search` }, place, changed);
    this.#topic = `log:${job}:${place.attempt}:${place.rank}`;
  }

  get total() {
    return this._total + (this.#open ? 1 : 0);
  }

  get(number) {
    return number === this._total ? { text: this.#open } : super.get(number);
  }

  // Reads the end of the log and follows it from there.
  async start() {
    live.unsubscribe(this.#topic);
    const answer = await super._read(-PAGE);
    if (!answer || this._isClosed) return;
    this._forget();
    const open = answer.open && answer.lines.pop();
    this._total = answer.lines.length ? answer.lines.at(-1).number + 1 : 0; // its total may count what came after
    this.#open = open ? open.text : "";
    this.#isSentAgain = Boolean(open);
    this.#end = answer.end;
    this.#readTo = answer.read_to;
    answer.lines.forEach((line) => this._put(line));
    this._changed(0);
    live.subscribe(this.#topic, (frame) => this.#receive(frame), { after: this.#end });
  }

  close() {
    this._isClosed = true;
    clearTimeout(this.#timer);
    live.unsubscribe(this.#topic);
  }

  // The socket answers in a fraction of the time that REST takes; not while it connects or polls.
  async _read(from) {
    const isAsked = live.send({ op: "lines", topic: this.#topic, from, count: PAGE });
    const told =
      isAsked &&
      new Promise((done) => {
        this.#waiting.set(from, done);
        setTimeout(done, SOCKET_MS);
      });
    return (await told) || super._read(from);
  }

  #receive(frame) {
    if (this._isClosed) return;
    if (frame.type === "gap" || frame.type === "skipped") this.start();
    else if (frame.type === "lines") this.#waiting.get(frame.from)?.(frame.data);
    else if (frame.type === "chunk") this.#append(frame.data, frame.seq);
  }

  #append({ offset, text, over, lines }, end) {
    if (end <= this.#end) return;
    const parts = text.split("\n");
    const rest = parts.pop();
    if (lines === null) {
      // of lines that were split only the server knows the numbers
      if (end <= this.#readTo) return;
      live.unsubscribe(this.#topic); // the next chunk would ask for them again
      this.#timer = setTimeout(() => this._isClosed || this.start(), AGAIN_MS);
      return;
    }
    if (parts.length !== lines || offset !== this.#end) {
      this.start(); // what was partly here already would have other numbers
      return;
    }
    const first = over || this.#isSentAgain ? "" : this.#open;
    this.#isSentAgain = false;
    if (parts.length) parts[0] = first + parts[0];
    this.#open = parts.length ? rest : first + rest;
    for (const part of parts) {
      this._put({ number: this._total, text: part });
      this._total += 1;
    }
    this.#end = end;
    this._changed(parts.length, parts);
  }
}

// Those of all ranks, in the order in which they were seen: asked for again while the job prints.
export class MergedLines extends Pages {
  #timer = 0;

  constructor(job, { attempt }, changed) {
    const merged = `/api/v1/jobs/${job}/logs/merged`;
    super({ lines: merged, search: `${merged}/search` }, { attempt }, changed);
  }

  async start() {
    const before = this._total;
    const answer = document.hidden && before ? null : await this._read(-PAGE);
    if (this._isClosed) return;
    if (answer) {
      this._total = answer.total;
      answer.lines.forEach((line) => this._put(line));
      if (this._total > before || !before) this._changed(before ? this._total - before : 0);
    }
    this.#timer = setTimeout(() => this.start(), this._total > before ? OFTEN_MS : SELDOM_MS);
  }

  close() {
    this._isClosed = true;
    clearTimeout(this.#timer);
  }
}
