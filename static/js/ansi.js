// Log text to nodes: colours become classes, everything else is text.
const SGR = /\x1b\[([0-9;:]*)m/g;

export function makeStyle() {
  return { bold: false, dim: false, underline: false, colour: null };
}

export function toNodes(text, style) {
  const nodes = [];
  let at = 0;
  for (const hit of text.matchAll(SGR)) {
    if (hit.index > at) nodes.push(piece(text.slice(at, hit.index), style));
    apply(hit[1], style);
    at = hit.index + hit[0].length;
  }
  if (at < text.length) nodes.push(piece(text.slice(at), style));
  return nodes;
}

function piece(text, style) {
  const classes = [];
  if (style.bold) classes.push("ansi-bold");
  if (style.dim) classes.push("ansi-dim");
  if (style.underline) classes.push("ansi-underline");
  if (style.colour !== null) classes.push(`ansi-${style.colour}`);
  if (!classes.length) return document.createTextNode(text);
  const span = document.createElement("span");
  span.className = classes.join(" ");
  span.textContent = text;
  return span;
}

function apply(codes, style) {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const code = numbers[at];
    if (code === 0) Object.assign(style, makeStyle());
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 4) style.underline = true;
    else if (code === 22) Object.assign(style, { bold: false, dim: false });
    else if (code === 24) style.underline = false;
    else if (code === 39) style.colour = null;
    else if (code >= 30 && code <= 37) style.colour = code - 30;
    else if (code >= 90 && code <= 97) style.colour = code - 90;
    else if (code === 38 || code === 48) {
      if (code === 38 && numbers[at + 1] === 5 && numbers[at + 2] < 16) style.colour = numbers[at + 2] % 8;
      at += numbers[at + 1] === 5 ? 2 : 4;
    }
  }
}
