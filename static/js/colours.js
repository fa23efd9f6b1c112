// The theme's colours as the browser resolves them, for what is drawn rather than styled.
const known = new Map();
let probe = null;

export function colour(name, alpha = 1) {
  if (!known.has(name)) {
    probe ??= document.body.appendChild(Object.assign(document.createElement("i"), { hidden: true }));
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  const text = known.get(name);
  return alpha === 1 ? text : text.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}

const listeners = [];

export function onThemeChange(run) {
  listeners.push(run);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  known.clear();
  for (const run of listeners) run();
});
