// The live log of one rank: follows the end, never steals the scroll position, keeps what is in memory bounded.
import { makeStyle, toNodes } from "./ansi.js";
import { live } from "./socket.js";

const MOST_CHARACTERS = 2_000_000;
const NEAR_END_PX = 24;

export class Log {
  #job;
  #topic = "";
  #start = 0; // the first byte that is shown
  #characters = 0;
  #style = makeStyle();
  #isOpen = false; // the last line shown has no end yet
  #isFresh = false;
  #unseen = 0;

  constructor(job) {
    this.#job = job;
    this.box = document.getElementById("log");
    this.status = document.getElementById("log-status");
    this.follow = document.getElementById("log-follow");
    this.rank = document.getElementById("log-rank");
    this.attempt = document.getElementById("log-attempt");
    const wrap = document.getElementById("log-wrap");
    wrap.addEventListener("change", () => this.box.classList.toggle("nowrap-lines", !wrap.checked));
    this.follow.addEventListener("change", () => this.#jump());
    this.box.addEventListener("scroll", () => this.#scrolled());
    for (const choice of [this.rank, this.attempt]) choice.addEventListener("change", () => this.open());
    this.earlier = this.#button("Load earlier lines", () => this.#loadEarlier());
    this.newer = this.#button("", () => { this.follow.checked = true; this.#jump(); });
    this.status.append(this.earlier, this.newer);
  }

  // Shows the log chosen above the window, from `after` on, or its last 64 KiB.
  open(after = null) {
    if (this.#topic) live.unsubscribe(this.#topic);
    this.#topic = `log:${this.#job}:${this.attempt.value}:${this.rank.value}`;
    this.#isFresh = true;
    this.#start = after ?? 0;
    const download = document.getElementById("log-download");
    download.href = `/api/v1/jobs/${this.#job}/logs?attempt=${this.attempt.value}&rank=${this.rank.value}&limit=4194304`;
    if (after === null) this.box.replaceChildren();
    this.#jump();
    this.#showStatus();
    live.subscribe(this.#topic, (frame) => this.#receive(frame), { after });
  }

  #receive(frame) {
    if (frame.type === "gap") return this.open();
    if (frame.type === "skipped") return this.#hole(frame.data);
    if (frame.type !== "chunk") return undefined;
    if (this.#isFresh) {
      this.box.replaceChildren();
      this.#characters = 0;
      this.#style = makeStyle();
      this.#isOpen = false;
      this.#isFresh = false;
      this.#start = frame.data.offset;
    }
    return this.#append(frame.data.text, frame.data.over);
  }

  #append(text, over) {
    let rest = text;
    if (this.#isOpen && this.box.lastElementChild) {
      const end = rest.indexOf("\n") + 1 || rest.length;
      const block = this.box.lastElementChild;
      if (over) dropOpenLine(block);
      block.append(...toNodes(rest.slice(0, end), this.#style));
      rest = rest.slice(end);
    }
    if (rest) this.#block(rest, "block");
    this.#isOpen = !text.endsWith("\n");
    this.#characters += text.length;
    this.#forgetOldest();
    if (this.follow.checked) this.#jump();
    else this.#unseen += text.split("\n").length - 1;
    this.#showStatus();
  }

  #block(text, kind) {
    const block = document.createElement("div");
    block.className = kind;
    block.append(...toNodes(text, this.#style));
    this.box.append(block);
    return block;
  }

  #hole({ from, to }) {
    this.#isOpen = false;
    this.#block(`… ${(to - from).toLocaleString("en")} bytes came faster than they could be shown; the download has them …\n`, "block hole");
  }

  #forgetOldest() {
    while (this.#characters > MOST_CHARACTERS && this.box.children.length > 1) {
      this.#characters -= this.box.firstElementChild.textContent.length;
      this.box.firstElementChild.remove();
      this.#start = null; // what is above can no longer be told by its offset
    }
  }

  async #loadEarlier() {
    const query = new URLSearchParams({ attempt: this.attempt.value, rank: this.rank.value, before: this.#start });
    const answer = await fetch(`/jobs/${this.#job}/log?${query}`);
    if (!answer.ok) return;
    const piece = await answer.json();
    const height = this.box.scrollHeight;
    const block = document.createElement("div");
    block.className = "block";
    block.append(...toNodes(piece.text, makeStyle()));
    this.follow.checked = false;
    this.box.prepend(block);
    this.box.scrollTop += this.box.scrollHeight - height;
    this.#start = piece.start;
    this.#characters += piece.text.length;
    this.#showStatus();
  }

  #scrolled() {
    const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR_END_PX;
    if (isAtEnd) this.#unseen = 0;
    else if (this.follow.checked && this.lastTop > this.box.scrollTop + 2) this.follow.checked = false;
    this.lastTop = this.box.scrollTop;
    this.#showStatus();
  }

  #jump() {
    if (!this.follow.checked) return;
    this.#unseen = 0;
    this.box.scrollTop = this.box.scrollHeight;
    this.lastTop = this.box.scrollTop;
    this.#showStatus();
  }

  #showStatus() {
    this.earlier.hidden = !this.#start;
    this.newer.hidden = !this.#unseen;
    const text = `${this.#unseen.toLocaleString("en")} new lines, jump to the end`;
    if (this.newer.textContent !== text) this.newer.textContent = text;
  }

  #button(label, run) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "is-plain", textContent: label, hidden: true });
    button.addEventListener("click", run);
    return button;
  }
}

function dropOpenLine(block) {
  while (block.lastChild) {
    const text = block.lastChild.textContent;
    const end = text.lastIndexOf("\n");
    if (end >= 0) {
      block.lastChild.textContent = text.slice(0, end + 1);
      return;
    }
    block.lastChild.remove();
  }
}
