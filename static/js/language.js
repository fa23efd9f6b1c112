// The reader's language: a page that is not in English loads its words (words-de.js) before any module.
const words = globalThis.berthWords ?? {};

// A text with its values: say("{n} jobs", { n: 3 }).
export function say(text, values = {}) {
  return (words[text] ?? text).replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);
}
