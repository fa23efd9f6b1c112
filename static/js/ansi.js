// Colours and styles of a terminal as nodes, addresses as links; everything else is text.
import { make } from "./dom.js";

const SGR = /\x1b\[([0-9;:]*)m/g;
const ADDRESS = /\bhttps?:\/\/[^\s<>"'`|\\]*[^\s<>"'`|\\.,;:!?)\]}]/gi;
const STEPS = [0, 95, 135, 175, 215, 255]; // of the 6 x 6 x 6 cube among the 256 colours
const ON = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

export function plainText(text) {
  return text.replace(SGR, "");
}

export function toNodes(text) {
  let style = {};
  return text
    .split(SGR)
    .flatMap((part, at) => {
      if (at % 2 === 0) return piece(part, style);
      style = restyle(style, part.split(/[;:]/).map(Number));
      return [];
    })
    .filter(Boolean);
}

// Text whose addresses of the web can be followed; nothing of this page goes with who follows them.
function linked(text) {
  if (!text.includes("://")) return [text];
  const parts = [];
  let end = 0;
  for (const { 0: href, index } of text.matchAll(ADDRESS)) {
    const link = { href, textContent: href, target: "_blank", rel: "noopener noreferrer nofollow", tabIndex: -1 };
    parts.push(text.slice(end, index), make("a", link));
    end = index + href.length;
  }
  return [...parts, text.slice(end)];
}

function piece(text, { colour, ground, ...marks }) {
  const names = [
    ...Object.keys(marks),
    ...(Number.isInteger(colour) ? [colour] : []),
    ...(Number.isInteger(ground) ? [`on-${ground}`] : []),
  ];
  if (!text || !(names.length || colour || ground)) return linked(text);
  const span = make("span", { className: names.map((name) => `ansi-${name}`).join(" ") }, ...linked(text));
  if (typeof colour === "string") {
    // Most are made for a dark terminal: moved towards the text, unless their own ground is given too.
    span.style.color = ground === undefined ? `color-mix(in oklab, ${colour} 65%, var(--text))` : colour;
  }
  if (typeof ground === "string") span.style.background = ground;
  return [span];
}

function restyle(before, codes) {
  let style = { ...before };
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at];
    if (code === 0) style = {};
    else if (ON[code]) style[ON[code]] = true;
    else if (OFF[code]) for (const name of OFF[code]) delete style[name];
    else if (code === 39) delete style.colour;
    else if (code === 49) delete style.ground;
    else if (/^(3|9)[0-7]$/.test(code)) style.colour = code % 10;
    else if (/^(4|10)[0-7]$/.test(code)) style.ground = code % 10;
    else if (code === 38 || code === 48) {
      const found = extended(codes.slice(at + 1));
      if (found !== null) style[code === 38 ? "colour" : "ground"] = found;
      at += codes[at + 1] === 5 ? 2 : 4;
    }
  }
  return style;
}

// 5;n of 256 colours, or 2;r;g;b: a number for the first sixteen, which the page's theme has, else a colour.
function extended([kind, ...values]) {
  if (kind === 2 && values.length >= 3) return rgb(values.slice(0, 3));
  const [n] = values;
  if (kind !== 5 || !(n >= 0 && n < 256)) return null;
  if (n < 16) return n % 8;
  if (n > 231) return rgb(Array(3).fill(8 + (n - 232) * 10));
  return rgb([36, 6, 1].map((size) => STEPS[Math.floor((n - 16) / size) % 6]));
}

function rgb(parts) {
  return `rgb(${parts.map((part) => Math.min(255, Math.max(0, part || 0))).join(" ")})`;
}
