// The lines of one log by number: pages of them over REST, new ones from the socket, never more than a few in memory.
import { live } from "./socket.js";

const PAGE = 200;
const MOST_PAGES = 20;
const DROPPED = "[dropped]";

export class LogLines {
  #job;
  #place; // { attempt, rank }
  #changed;
  #pages = new Map(); // page number to its lines, oldest use first
  #asked = new Set();
  #whole = 0; // lines that have their newline
  #open = ""; // the last line, while it has none
  #end = 0; // the byte behind the last whole line
  #topic;
  #isClosed = false;

  // changed(added) is called whenever there is something else to show.
  constructor(job, place, changed) {
    this.#job = job;
    this.#place = place;
    this.#changed = changed;
    this.#topic = `log:${job}:${place.attempt}:${place.rank}`;
  }

  get total() {
    return this.#whole + (this.#open ? 1 : 0);
  }

  // Reads the end of the log and follows it from there.
  async start() {
    live.unsubscribe(this.#topic);
    const answer = await this.#read("lines", { from: -PAGE, count: PAGE });
    if (!answer || this.#isClosed) return;
    this.#pages.clear();
    if (answer.open) answer.lines.pop();
    this.#whole = answer.lines.length ? answer.lines.at(-1).number + 1 : 0; // total may count what came after the last of them
    this.#open = "";
    this.#end = answer.end;
    for (const line of answer.lines) this.#put(line.number, line.text);
    this.#changed(0);
    live.subscribe(this.#topic, (frame) => this.#receive(frame), { after: this.#end });
  }

  close() {
    this.#isClosed = true;
    live.unsubscribe(this.#topic);
  }

  // The text of a line; null while it is being fetched.
  get(number) {
    if (number === this.#whole) return this.#open;
    const page = Math.floor(number / PAGE);
    const lines = this.#pages.get(page);
    if (lines) {
      this.#pages.delete(page); // used last
      this.#pages.set(page, lines);
      if (lines[number % PAGE] !== undefined) return lines[number % PAGE];
    }
    this.#fetch(page);
    return null;
  }

  // { total, more, hits }, or { problem } in words.
  async search(query) {
    return this.#read("search", query, true);
  }

  async #fetch(page) {
    if (this.#asked.has(page)) return;
    this.#asked.add(page);
    const answer = await this.#read("lines", { from: page * PAGE, count: PAGE });
    this.#asked.delete(page);
    if (!answer || this.#isClosed) return;
    // What the log's limit has dropped is told so, or it would be asked for again and again.
    const last = Math.min((page + 1) * PAGE, this.#whole);
    for (let number = page * PAGE; number < last; number += 1) this.#put(number, DROPPED);
    for (const line of answer.lines) if (line.number < this.#whole) this.#put(line.number, line.text);
    this.#changed(0);
  }

  async #read(what, query, tellsProblem = false) {
    const parameters = new URLSearchParams({ ...this.#place, ...query });
    try {
      const answer = await fetch(`/api/v1/jobs/${this.#job}/logs/${what}?${parameters}`);
      const body = await answer.json();
      if (answer.ok) return body;
      return tellsProblem ? { problem: body.errors?.q?.[0] ?? body.detail } : null;
    } catch {
      return tellsProblem ? { problem: "The server does not answer." } : null;
    }
  }

  #receive(frame) {
    if (this.#isClosed) return;
    if (frame.type === "gap" || frame.type === "skipped") this.start();
    else if (frame.type === "chunk") this.#append(frame.data, frame.seq);
  }

  #append({ offset, text, over, lines }, end) {
    if (end <= this.#end) return;
    const parts = text.split("\n");
    const rest = parts.pop();
    if (parts.length !== lines || offset !== this.#end) {
      this.start(); // what was dropped, split or partly here already would have other numbers
      return;
    }
    const first = this.#open && !over ? this.#open : "";
    if (parts.length) parts[0] = first + parts[0];
    this.#open = parts.length ? rest : first + rest;
    for (const line of parts) {
      this.#put(this.#whole, line);
      this.#whole += 1;
    }
    this.#end = end;
    this.#changed(parts.length);
  }

  #put(number, text) {
    const page = Math.floor(number / PAGE);
    if (!this.#pages.has(page)) {
      this.#pages.set(page, []);
      while (this.#pages.size > MOST_PAGES) this.#pages.delete(this.#pages.keys().next().value);
    }
    this.#pages.get(page)[number % PAGE] = text;
  }
}
