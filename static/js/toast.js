// Short messages at the bottom right; errors stay until they are closed.
const MOST = 3;
const STAYS_MS = 6000;

export function toast(text, { bad = false, action = null, staysMs = bad ? 0 : STAYS_MS } = {}) {
  const box = document.getElementById("toasts");
  const element = document.createElement("div");
  element.className = bad ? "toast is-bad" : "toast";
  const words = document.createElement("p");
  words.textContent = text;
  element.append(words);
  const close = () => element.remove();
  if (action) element.append(button(action.label, () => (close(), action.run())));
  if (!staysMs) element.append(button("Close", close));
  box.append(element);
  while (box.children.length > MOST) box.firstElementChild.remove();
  if (staysMs) setTimeout(close, staysMs);
  return { close, say: (changed) => { words.textContent = changed; } };
}

function button(label, run) {
  const element = document.createElement("button");
  element.type = "button";
  element.className = "is-plain";
  element.textContent = label;
  element.addEventListener("click", run);
  return element;
}
