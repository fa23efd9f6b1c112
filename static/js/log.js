// The log viewer: a window of some sixty lines on a log of any length; follows the end, never steals the scroll position.
import { copyText, toast } from "./actions.js";
import { plainText, toNodes } from "./ansi.js";
import { moveCursor } from "./cursor.js";
import { button, by, locale, make, say, write } from "./dom.js";
import { Folds } from "./log-folds.js";
import { MergedLines, RankLines } from "./log-lines.js";
import { LogSearch } from "./log-search.js";

const ROW_PX = 18;
const BEYOND = 10; // rows above and below what is seen
const TALLEST_PX = 15_000_000; // browsers lose exactness above
const LONGEST = 4000;
const NEAR_END_PX = 24;
const LATE_MS = 60;
const READ_MS = 5000;
const POINT_MS = 120; // that the cursor of the charts rests before the log moves
const LEAVE_MS = 1500; // until the log follows its end again after it
const STEP = /\b(?:step|iter(?:ation)?|it|update)s?\b["']?\s*[\[(:=#]?\s*(\d[\d,_]*)/i;
const FOLD_MS = 1000; // between two questions for groups
const UP = 20; // lines above one without a step that may name it
const HEAD = { text: null }; // of a group, whose name is known without its line
const LINK = /^#L(\d{1,15})(?:-L?(\d{1,15}))?$/; // also links of earlier versions, without the second L
const LEVELS = [
  [/\b(error|critical|fatal|traceback|exception)\b/i, "is-error"],
  [/\bwarn(ing)?\b/i, "is-warning"],
];

export class Log {
  #job;
  #whereIs;
  #lines = null;
  #marked = null; // [first, last] of a link
  #unseen = 0;
  #drawing = 0;
  #late = 0;
  #readAt = 0;
  #lastTop = 0;
  #pointed = null; // the line of the charts' cursor
  #pointing = 0; // a timer
  #followed = null; // whether the end was followed before the cursor came
  #folds = new Folds();
  #folding = 0; // a timer

  // whereIs(query) tells the line of a step or a time.
  constructor(job, whereIs) {
    this.#job = job;
    this.#whereIs = whereIs;
    for (const name of ["follow", "rank", "attempt", "reader", "said"]) this[name] = by(`log-${name}`);
    this.box = by("log");
    this.ground = make("div", { className: "log-ground" });
    this.window = make("div", { className: "log-window" });
    this.newer = button(
      "",
      () => {
        this.follow.checked = true;
        this.#draw();
      },
      "is-plain",
    );
    this.newer.hidden = true;
    this.count = make("span");
    this.copy = button("", () => this.#copyLines(), "is-plain copies");
    this.link = button(say("Copy link"), () => copyText(location.href, say("Copied the link.")), "is-plain copies");
    this.groups = button("", () => this.#foldAll(), "is-plain");
    by("log-status").append(this.count, this.groups, this.newer, this.copy, this.link);
    by("log-wrap").addEventListener("change", (event) => {
      this.box.classList.toggle("wraps", event.target.checked);
      this.#draw();
    });
    this.follow.addEventListener("change", () => this.#draw());
    this.box.addEventListener("scroll", () => this.#scrolled());
    this.box.addEventListener("click", (event) => this.#clicked(event));
    for (const choice of [this.rank, this.attempt]) choice.addEventListener("change", () => this.open());
    this.box.addEventListener("pointerover", (event) => this.#pointedAt(event.target.closest(".line")));
    this.box.addEventListener("pointerleave", () => moveCursor("step", null, "log"));
    addEventListener("hashchange", () => this.#readLink());
    new ResizeObserver(() => this.#draw()).observe(this.box);
    this.search = new LogSearch(
      this.box,
      (query) => this.#lines.search(query),
      (number) => this.show(number),
      () => this.#draw(),
    );
  }

  // Shows the log that is chosen above the window.
  open() {
    this.#lines?.close();
    this.#unseen = 0;
    this.window.replaceChildren();
    this.search.forget();
    const place = { attempt: this.attempt.value, rank: this.rank.value };
    this.box.classList.toggle("is-merged", place.rank === "all");
    const download = by("log-download");
    download.hidden = place.rank === "all"; // each rank has its own file
    download.href = `/api/v1/jobs/${this.#job}/logs?${new URLSearchParams({ ...place, limit: 4194304 })}`;
    const Lines = place.rank === "all" ? MergedLines : RankLines;
    const lines = new Lines(this.#job, place, (added, texts) => this.#grew(added, texts));
    this.#lines = lines;
    this.#folds = new Folds();
    clearTimeout(this.#folding);
    this.#folding = 0;
    lines.start().then(() => {
      this.#readLink();
      if (Lines === RankLines) this.#readFolds(lines); // lines of other ranks stand between those of a group
    });
  }

  // Brings a line to the middle of the window.
  show(number) {
    this.follow.checked = false;
    this.#folds.reveal(number);
    const middle = this.#folds.rowOf(number) - Math.floor(this.#seen / 2);
    this.#place();
    this.box.scrollTop = this.#isScaled
      ? (Math.max(0, middle) / Math.max(1, this.#rows - this.#seen)) * this.#reach
      : Math.max(0, middle) * ROW_PX;
    this.#draw();
  }

  // Stands at the line of the charts' cursor; once it is gone, the log follows its end again if it did before.
  point(query) {
    clearTimeout(this.#pointing);
    if (this.rank.value === "all" || !this.box.clientHeight) return;
    this.#pointing = query ? setTimeout(() => this.#pointTo(query), POINT_MS) : setTimeout(() => this.#leave(), LEAVE_MS);
  }

  async #pointTo(query) {
    const mine = this.#pointing;
    const found = await this.#whereIs({ ...query, attempt: this.attempt.value, rank: this.rank.value });
    if (mine !== this.#pointing || !found || found.line === null) return; // the cursor has moved on, or no line is known
    this.#followed ??= this.follow.checked;
    this.#pointed = found.line;
    this.show(found.line);
  }

  #leave() {
    if (this.#pointed === null) return;
    this.#pointed = null;
    if (this.#followed && !this.box.matches(":hover")) this.follow.checked = true;
    this.#followed = null;
    this.#draw();
  }

  // The charts' cursor stands at the step that a line names, or a line above it.
  #pointedAt(row) {
    if (!row) return;
    const number = Number(row.dataset.line);
    for (let at = number; at >= 0 && at > number - UP; at -= 1) {
      const step = STEP.exec(plainText(this.#lines.get(at)?.text ?? ""));
      if (step) return moveCursor("step", Number(step[1].replace(/[,_]/g, "")), "log");
    }
    return undefined;
  }

  get #seen() {
    return Math.max(1, Math.floor(this.box.clientHeight / ROW_PX));
  }

  get #rows() {
    return this.#folds.rows(this.#lines.total);
  }

  get #isScaled() {
    return this.#rows * ROW_PX > TALLEST_PX;
  }

  get #reach() {
    return this.box.scrollHeight - this.box.clientHeight;
  }

  async #readFolds(lines) {
    const { whole } = lines;
    const hasMore = await this.#folds.read((query) => lines.search(query), whole);
    this.#folding = 0;
    if (lines !== this.#lines) return;
    if (this.#marked) this.#folds.reveal(this.#marked[0]);
    if (hasMore && this.#marked && !this.follow.checked) this.show(Math.min(this.#marked[0], lines.total - 1));
    if (hasMore) this.#draw();
  }

  // Lines that came one after the other are looked at here, those after a gap by the server.
  #noteFolds(added, texts) {
    if (this.rank.value === "all" || this.#folding || this.#folds.seen < 0) return;
    const lines = this.#lines;
    if (texts && this.#folds.seen === lines.whole - added) this.#folds.note(texts);
    else if (this.#folds.seen < lines.whole) this.#folding = setTimeout(() => this.#readFolds(lines), FOLD_MS);
  }

  #foldAll() {
    this.#folds.toggleAll();
    this.#draw();
  }

  #grew(added, texts) {
    this.#noteFolds(added, texts);
    if (!this.follow.checked) this.#unseen += added;
    if (added && this.reader.checked && Date.now() - this.#readAt > READ_MS) {
      this.#readAt = Date.now();
      this.said.textContent = this.#lines.get(this.#lines.total - 1)?.text ?? "";
    }
    if (added) this.#draw();
    else this.#drawAtOnce(); // somebody waits for these lines
  }

  #draw() {
    this.#drawing ||= requestAnimationFrame(() => this.#drawAtOnce());
  }

  #drawAtOnce() {
    cancelAnimationFrame(this.#drawing);
    this.#drawing = 0;
    this.#drawNow();
  }

  // Lines that are all still on their way come before the next frame: dots in their place would be drawn for nothing.
  #drawNow(isLate = false) {
    if (!this.#lines) return;
    if (this.window.parentNode !== this.ground) {
      this.ground.append(this.window);
      this.box.replaceChildren(this.ground);
    }
    this.#place();
    if (this.follow.checked) {
      this.#unseen = 0;
      this.box.scrollTop = this.box.scrollHeight;
      this.#lastTop = this.box.scrollTop;
    }
    const top = this.box.scrollTop;
    const scrolled = this.#isScaled
      ? Math.round((top / Math.max(1, this.#reach)) * (this.#rows - this.#seen))
      : Math.floor(top / ROW_PX);
    const first = Math.max(0, Math.min(scrolled, this.#rows - this.#seen)); // fewer rows than before a fold
    const from = Math.max(0, first - BEYOND);
    const to = Math.min(this.#rows, first + this.#seen + BEYOND);
    const numbers = Array.from({ length: Math.max(0, to - from) }, (_, at) => this.#folds.lineAt(from + at));
    const lines = numbers.map((number) => (this.#folds.at(number) ? HEAD : this.#lines.get(number)));
    if (!isLate && to && !lines.some(Boolean)) {
      this.#late ||= setTimeout(() => this.#drawNow(true), LATE_MS);
      return;
    }
    this.#late = clearTimeout(this.#late);
    // Rows that stay are not touched: a click or a selection in them goes on.
    const rows = lines.map((line, at) => this.#row(numbers[at], line));
    const { children } = this.window;
    for (const row of [...children]) if (!rows.includes(row)) row.remove();
    rows.forEach((row, at) => children[at] === row || this.window.insertBefore(row, children[at]));
    this.window.style.top = `${this.#isScaled ? top - (first - from) * ROW_PX : from * ROW_PX}px`;
    if (this.follow.checked) this.box.scrollTop = this.box.scrollHeight; // wrapped lines are taller than their rows
    this.#showUnseen();
  }

  #place() {
    this.ground.style.height = `${Math.min(TALLEST_PX, this.#rows * ROW_PX)}px`;
    this.search.marks.dataset.total = this.#lines.total;
    this.box.style.setProperty("--digits", String(this.#lines.total).length);
    this.box.classList.toggle("is-empty", this.#lines.total === 0);
  }

  #row(number, line) {
    const old = this.window.querySelector(`[data-line="${number}"]`);
    const group = this.#folds.at(number);
    const row = old && old.text === line?.text && old.fold === foldOf(group) ? old : this.#newRow(number, line, group);
    row.classList.toggle("hit", this.search.has(number));
    row.classList.toggle("is-current", this.search.current === number);
    row.classList.toggle("is-pointed", this.#pointed === number);
    row.classList.toggle("is-linked", number >= this.#marked?.[0] && number <= this.#marked[1]);
    return row;
  }

  #newRow(number, line, group) {
    const link = make("a", {
      className: "line-number",
      href: `#L${number + 1}`,
      textContent: number + 1,
      tabIndex: -1,
    });
    const content = make("span", line ? {} : { className: "quiet", textContent: "…" });
    const row = make(
      "div",
      { className: "line", text: line?.text, fold: foldOf(group) },
      link,
      ...(line?.seen_at ? [rankOf(line)] : []),
      content,
    );
    row.dataset.line = number;
    if (!line) return row;
    if (group) {
      row.classList.add("is-group");
      content.append(...this.#groupHead(group));
      return row;
    }
    const { text } = line;
    const shown = line.isOpen ? text : text.slice(0, LONGEST);
    content.append(...toNodes(shown));
    if (shown !== text)
      content.append(
        button(
          say("show all {n} characters", { n: text.length }),
          () => {
            line.isOpen = true;
            content.replaceChildren(...toNodes(text));
          },
          "is-plain",
        ),
      );
    const level = LEVELS.find(([words]) => words.test(content.textContent));
    if (level) row.classList.add(level[1]);
    return row;
  }

  // A group without an end is a heading; one that ended opens and folds.
  #groupHead({ first, last, name, isOpen }) {
    const title = name || say("group");
    if (last === null) return [make("b", { textContent: title })];
    const turn = button(title, () => this.#turn(first), "is-plain");
    turn.ariaExpanded = String(isOpen);
    const many = ` ${linesWords(last - first)}`;
    return isOpen ? [turn] : [turn, make("span", { className: "quiet", textContent: many })];
  }

  #turn(number) {
    this.follow.checked = false; // what is opened stays in sight
    this.#folds.toggle(number);
    this.#drawAtOnce();
    this.window.querySelector(`[data-line="${number}"] button`)?.focus({ preventScroll: true });
  }

  #clicked(event) {
    const row = event.target.closest(".line-number")?.closest(".line");
    if (!row || !event.shiftKey || !this.#marked) return;
    event.preventDefault();
    const ends = [this.#marked[0], Number(row.dataset.line)].sort((a, b) => a - b);
    history.replaceState(null, "", `#L${ends[0] + 1}-L${ends[1] + 1}`);
    this.#readLink(false);
  }

  #readLink(jumps = true) {
    const found = LINK.exec(location.hash);
    this.#marked = found ? [Number(found[1]) - 1, Number(found[2] ?? found[1]) - 1] : null;
    if (found && jumps && this.#lines.total) this.show(Math.min(this.#marked[0], this.#lines.total - 1));
    else this.#draw();
  }

  // The marked lines as they are numbered for people.
  get #ends() {
    return this.#marked.map((number) => number + 1);
  }

  async #copyLines() {
    const [first, last] = this.#ends;
    const text = await this.#lines.text(...this.#marked);
    if (text === null) toast(say("The lines could not be read; try again."), { bad: true });
    else {
      const copied = say(first === last ? "Copied line {first}." : "Copied lines {first} to {last}.", { first, last });
      copyText(plainText(text), copied);
    }
  }

  #scrolled() {
    const isAtEnd = this.#reach - this.box.scrollTop < NEAR_END_PX;
    if (isAtEnd) this.#unseen = 0;
    else if (this.follow.checked && this.#lastTop > this.box.scrollTop + 2) this.follow.checked = false;
    this.#lastTop = this.box.scrollTop;
    if (!this.follow.checked) this.#draw();
  }

  #showUnseen() {
    this.newer.hidden = !this.#unseen;
    this.copy.hidden = this.link.hidden = !this.#marked;
    this.groups.hidden = !this.#folds.count;
    write(this.groups, this.#folds.isAnyFolded ? say("Open all groups") : say("Fold all groups"));
    if (this.#marked) {
      const [first, last] = this.#ends;
      write(this.copy, say(first === last ? "Copy line" : "Copy lines {first} to {last}", { first, last }));
    }
    const total = this.#lines.total;
    write(this.count, total ? linesWords(total) : "");
    write(this.newer, say("{n} new lines, jump to the end", { n: this.#unseen }));
  }
}

function foldOf(group) {
  return group && `${group.isOpen} ${group.last}`;
}

function linesWords(n) {
  return say(n === 1 ? "{n} line" : "{n} lines", { n });
}

function rankOf({ rank, seen_at }) {
  const seen = new Date(seen_at);
  return make("span", {
    className: "line-rank quiet",
    textContent: `${seen.toTimeString().slice(0, 8)} r${rank}`,
    title: say("Rank {rank}, seen {time}", { rank, time: seen.toLocaleString(locale) }),
  });
}
