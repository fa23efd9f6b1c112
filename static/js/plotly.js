// Loads plotly.js when the first chart is near the view, and starts it a piece at a time.
const LONGEST_MS = 12; // of one piece; then the page gets its turn

let loading = null;

export function loadPlotly() {
  loading ??= fetchScript(document.querySelector("[data-plotly]").dataset.plotly).then(start);
  return loading;
}

function fetchScript(address) {
  return new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: address });
    script.addEventListener("load", () => resolve(globalThis.Plotly));
    script.addEventListener("error", () => reject(new Error("The chart library could not be loaded; reload the page.")));
    document.head.append(script);
  });
}

// The whole bundle has started by itself; the reduced one comes in parts (dashboard/plotly_bundle.py).
async function start(loaded) {
  if (!loaded.parts) return loaded;
  let began = performance.now();
  for (const part of loaded.parts) {
    part();
    if (performance.now() - began > LONGEST_MS) {
      await new Promise((resolve) => { setTimeout(resolve); });
      began = performance.now();
    }
  }
  globalThis.Plotly = loaded.start();
  return globalThis.Plotly;
}
