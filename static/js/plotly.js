// Plotly, for bars and for the pictures that people save of a chart: loaded when first needed.
// Names come from jobs: what is handed to it goes through asText.
import { axisLook, ground } from "./chart-drawing.js";
import { make, say } from "./dom.js";
import { colour } from "./shell.js";

const LONGEST_MS = 12; // of one piece of its start; then the page gets its turn
let loading = null;

// The layout of bars, whose hover is Plotly's own.
export function barLayout({ xaxis, yaxis, ...layout }) {
  const axis = { ...axisLook(), fixedrange: true };
  return {
    ...ground(),
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("edge"), font: { color: colour("text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    xaxis: { ...axis, showgrid: false, ...xaxis },
    yaxis: { ...axis, rangemode: "tozero", ...yaxis },
    ...layout,
  };
}

// Plotly reads a little markup in titles and labels; a name is text.
export function asText(name, longest) {
  const short = name.length > longest ? `${name.slice(0, longest)}…` : name;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

// Started a piece at a time.
export function loadPlotly() {
  loading ??= fetchScript(document.querySelector("[data-plotly]").dataset.plotly).then(start);
  return loading;
}

function fetchScript(src) {
  return new Promise((resolve, reject) => {
    const failed = () => reject(new Error(say("The chart library could not be loaded; reload the page.")));
    document.head.append(make("script", { src, onload: () => resolve(globalThis.Plotly), onerror: failed }));
  });
}

// The whole bundle has started by itself; the reduced one comes in parts (dashboard/assets/plotly_bundle.py).
async function start(loaded) {
  if (!loaded.parts) return loaded;
  let began = performance.now();
  for (const part of loaded.parts) {
    part();
    if (performance.now() - began > LONGEST_MS) {
      await new Promise((resolve) => {
        setTimeout(resolve);
      });
      began = performance.now();
    }
  }
  globalThis.Plotly = loaded.start();
  return globalThis.Plotly;
}
