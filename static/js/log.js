// The log viewer: a window of some sixty lines on a log of any length; follows the end, never steals the scroll position.
import { button, by, make, write } from "./dom.js";
import { MergedLines, RankLines } from "./log-lines.js";
import { LogSearch } from "./log-search.js";

const ROW_PX = 18;
const BEYOND = 10; // rows above and below what is seen
const TALLEST_PX = 15_000_000; // browsers lose exactness above
const LONGEST = 4000;
const NEAR_END_PX = 24;
const LATE_MS = 60;
const READ_MS = 5000;
const SGR = /\x1b\[([0-9;:]*)m/g; // what colours text
const LEVELS = [
  [/\b(error|critical|fatal|traceback|exception)\b/i, "is-error"],
  [/\bwarn(ing)?\b/i, "is-warning"],
];

export class Log {
  #job;
  #lines = null;
  #marked = null; // [first, last] of a link
  #unseen = 0;
  #drawing = 0;
  #late = 0;
  #readAt = 0;
  #lastTop = 0;

  constructor(job) {
    this.#job = job;
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
    by("log-status").append(this.count, this.newer);
    by("log-wrap").addEventListener("change", (event) => {
      this.box.classList.toggle("wraps", event.target.checked);
      this.#draw();
    });
    this.follow.addEventListener("change", () => this.#draw());
    this.box.addEventListener("scroll", () => this.#scrolled());
    this.box.addEventListener("click", (event) => this.#clicked(event));
    for (const choice of [this.rank, this.attempt]) choice.addEventListener("change", () => this.open());
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
    this.#lines = new Lines(this.#job, place, (added) => this.#grew(added));
    this.#lines.start().then(() => this.#readLink());
  }

  // Brings a line to the middle of the window.
  show(number) {
    this.follow.checked = false;
    const middle = number - Math.floor(this.#seen / 2);
    this.#place();
    this.box.scrollTop = this.#isScaled
      ? (Math.max(0, middle) / Math.max(1, this.#lines.total - this.#seen)) * this.#reach
      : Math.max(0, middle) * ROW_PX;
    this.#draw();
  }

  get #seen() {
    return Math.max(1, Math.floor(this.box.clientHeight / ROW_PX));
  }

  get #isScaled() {
    return this.#lines.total * ROW_PX > TALLEST_PX;
  }

  get #reach() {
    return this.box.scrollHeight - this.box.clientHeight;
  }

  #grew(added) {
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
    const first = this.#isScaled
      ? Math.round((top / Math.max(1, this.#reach)) * (this.#lines.total - this.#seen))
      : Math.floor(top / ROW_PX);
    const from = Math.max(0, first - BEYOND);
    const to = Math.min(this.#lines.total, first + this.#seen + BEYOND);
    const lines = Array.from({ length: to - from }, (_, at) => this.#lines.get(from + at));
    if (!isLate && to && !lines.some(Boolean)) {
      this.#late ||= setTimeout(() => this.#drawNow(true), LATE_MS);
      return;
    }
    this.#late = clearTimeout(this.#late);
    // Rows that stay are not touched: a click or a selection in them goes on.
    const rows = lines.map((line, at) => this.#row(from + at, line));
    const { children } = this.window;
    for (const row of [...children]) if (!rows.includes(row)) row.remove();
    rows.forEach((row, at) => children[at] === row || this.window.insertBefore(row, children[at]));
    this.window.style.top = `${this.#isScaled ? top - (first - from) * ROW_PX : from * ROW_PX}px`;
    if (this.follow.checked) this.box.scrollTop = this.box.scrollHeight; // wrapped lines are taller than their rows
    this.#showUnseen();
  }

  #place() {
    this.ground.style.height = `${Math.min(TALLEST_PX, this.#lines.total * ROW_PX)}px`;
    this.search.marks.dataset.total = this.#lines.total;
    this.box.classList.toggle("is-empty", this.#lines.total === 0);
  }

  #row(number, line) {
    const old = this.window.querySelector(`[data-line="${number}"]`);
    const row = old && old.text === line?.text ? old : this.#newRow(number, line);
    row.classList.toggle("hit", this.search.has(number));
    row.classList.toggle("is-current", this.search.current === number);
    row.classList.toggle("is-linked", number >= this.#marked?.[0] && number <= this.#marked[1]);
    return row;
  }

  #newRow(number, line) {
    const link = make("a", {
      className: "line-number",
      href: `#L${number + 1}`,
      textContent: number + 1,
      tabIndex: -1,
    });
    const content = make("span", line ? {} : { className: "quiet", textContent: "…" });
    const row = make(
      "div",
      { className: "line", text: line?.text },
      link,
      ...(line?.seen_at ? [rankOf(line)] : []),
      content,
    );
    row.dataset.line = number;
    if (!line) return row;
    const { text } = line;
    const shown = line.isOpen ? text : text.slice(0, LONGEST);
    content.append(...toNodes(shown));
    if (shown !== text)
      content.append(
        button(
          `show all ${text.length.toLocaleString("en")} characters`,
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

  #clicked(event) {
    const row = event.target.closest("a")?.closest(".line");
    if (!row || !event.shiftKey || !this.#marked) return;
    event.preventDefault();
    const ends = [this.#marked[0], Number(row.dataset.line)].sort((a, b) => a - b);
    history.replaceState(null, "", `#L${ends[0] + 1}-${ends[1] + 1}`);
    this.#readLink(false);
  }

  #readLink(jumps = true) {
    const found = /^#L(\d{1,15})(?:-(\d{1,15}))?$/.exec(location.hash);
    this.#marked = found ? [Number(found[1]) - 1, Number(found[2] ?? found[1]) - 1] : null;
    if (found && jumps && this.#lines.total) this.show(Math.min(this.#marked[0], this.#lines.total - 1));
    else this.#draw();
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
    write(this.count, this.#lines.total ? `${this.#lines.total.toLocaleString("en")} lines` : "");
    write(this.newer, `${this.#unseen.toLocaleString("en")} new lines, jump to the end`);
  }
}

function rankOf({ rank, seen_at }) {
  const seen = new Date(seen_at);
  return make("span", {
    className: "line-rank quiet",
    textContent: `${seen.toTimeString().slice(0, 8)} r${rank}`,
    title: `Rank ${rank}, seen ${seen.toLocaleString()}`,
  });
}

// Text to nodes: colours become classes, everything else is text.
function toNodes(text) {
  let style = {};
  return text
    .split(SGR)
    .map((part, at) => {
      if (at % 2 === 0) return piece(part, style);
      style = restyle(style, part.split(/[;:]/).map(Number));
      return "";
    })
    .filter(Boolean);
}

function piece(text, style) {
  const className = Object.values(style)
    .map((name) => `ansi-${name}`)
    .join(" ");
  return text && className ? make("span", { className, textContent: text }) : text;
}

function restyle(before, codes) {
  let style = { ...before };
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at];
    if (code === 0) style = {};
    else if (code === 1) style.bold = "bold";
    else if (code === 2) style.dim = "dim";
    else if (code === 4) style.underline = "underline";
    else if (code === 22) {
      delete style.bold;
      delete style.dim;
    } else if (code === 24) delete style.underline;
    else if (code === 39) delete style.colour;
    else if (/^[39][0-7]$/.test(code)) style.colour = code % 10;
    else if (code === 38 || code === 48) {
      if (code === 38 && codes[at + 1] === 5 && codes[at + 2] < 16) style.colour = codes[at + 2] % 8;
      at += codes[at + 1] === 5 ? 2 : 4;
    }
  }
  return style;
}
