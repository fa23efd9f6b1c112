// The reader's language: a page that is not in English loads its words (words-de.js) before any module.
const words = globalThis.berthWords ?? {};

export const locale = document.documentElement.lang; // of dates; numbers are written as in English everywhere

// A text with its values: say("{n} jobs chosen", { n: 1200 }). A place without a value stays, for a later say() to fill.
export function say(text, values = {}) {
  return (words[text] ?? text).replace(/\{(\w+)\}/g, (all, name) => values[name]?.toLocaleString("en") ?? all);
}
