// Groups of lines in a log, as GitHub writes them (::group::NAME to ::endgroup::), and where lines stand while some are folded.
// Only what was closed is folded unasked: a group that never ends hides nothing.
const MARK = /^::(?:group::(.*)|endgroup::\s*)$/;
const QUERY = { q: "^::(group::|endgroup::)", regex: true, case: true };
const PAGE = 1000;
const MOST = 10_000; // marks; what comes after them is not folded

export class Folds {
  seen = -1; // lines that were looked at; none yet
  #groups = []; // {first, last, name, isOpen}; last is null while it goes on
  #hidden = []; // {first, last, before} of what is folded, in order; before counts the lines hidden above

  get count() {
    return this.#groups.filter(({ last }) => last !== null).length;
  }

  get isAnyFolded() {
    return this.#hidden.length > 0;
  }

  // Marks in the lines from `seen` to `until`, which the server finds; true where there are any.
  async read(search, until) {
    const isFirst = this.seen < 0;
    let from = Math.max(0, this.seen);
    let marks = 0;
    for (;;) {
      const answer = await search({ ...QUERY, from, limit: PAGE });
      if (!answer?.hits) return false; // asked again with the next lines
      for (const { number, text } of answer.hits) if (number < until) this.#mark(number, text, isFirst);
      marks += answer.hits.length;
      if (answer.hits.length < PAGE || marks >= MOST) break;
      from = answer.hits.at(-1).number + 1;
    }
    this.seen = Math.max(this.seen, until);
    if (marks) this.#fold();
    return marks > 0;
  }

  // Lines that came live: a group that one saw open stays so.
  note(texts) {
    texts.forEach((text, at) => this.#mark(this.seen + at, text, false));
    this.seen += texts.length;
  }

  // {first, last, name, isOpen} of the group that begins there.
  at(number) {
    return this.#groups[this.#indexBefore(number)]?.first === number ? this.#groups[this.#indexBefore(number)] : null;
  }

  toggle(number) {
    const group = this.at(number);
    if (!group) return;
    group.isOpen = !group.isOpen;
    this.#fold();
  }

  toggleAll() {
    const isOpen = this.isAnyFolded;
    for (const group of this.#groups) group.isOpen = isOpen;
    this.#fold();
  }

  // Opens the group that hides a line.
  reveal(number) {
    const group = this.#groups[this.#indexBefore(number)];
    if (!group || group.isOpen || group.last === null || number === group.first || number > group.last) return;
    group.isOpen = true;
    this.#fold();
  }

  // Rows that so many lines take.
  rows(total) {
    return total - (this.#hidden.at(-1)?.upTo ?? 0);
  }

  lineAt(row) {
    const at = lastWhere(this.#hidden, ({ first, before }) => first - before <= row);
    return row + (this.#hidden[at]?.upTo ?? 0);
  }

  rowOf(line) {
    const at = lastWhere(this.#hidden, ({ first }) => first <= line);
    const fold = this.#hidden[at];
    if (!fold) return line;
    return line <= fold.last ? fold.first - fold.before - 1 : line - fold.upTo;
  }

  #mark(number, text, folds) {
    const found = MARK.exec(text);
    if (!found) return;
    const open = this.#groups.at(-1)?.last === null ? this.#groups.at(-1) : null;
    if (found[1] === undefined) {
      if (open) Object.assign(open, { last: number, isOpen: !folds });
      return;
    }
    if (open) open.last = number - 1; // the next group ends one that was not closed
    this.#groups.push({ first: number, last: null, name: found[1].trim(), isOpen: true });
  }

  #fold() {
    let upTo = 0;
    this.#hidden = this.#groups
      .filter(({ first, last, isOpen }) => !isOpen && last !== null && last > first)
      .map(({ first, last }) => {
        const before = upTo;
        upTo += last - first;
        return { first: first + 1, last, before, upTo };
      });
  }

  #indexBefore(number) {
    return lastWhere(this.#groups, ({ first }) => first <= number);
  }
}

// The last place where something holds that holds for all before it; -1 for none.
function lastWhere(list, holds) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(list[middle])) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
