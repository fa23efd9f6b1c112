// The charts of a grid of strategies; the table below says the same in numbers.
import { loadPlotly } from "./plotly.js";
import { colour, onThemeChange, startShell } from "./shell.js";

const LOOK_AGAIN_MS = 5000;
const FILLS = ["accent", "info", "warning", "bad", "quiet", "text"];

startShell();
const page = document.getElementById("benchmarks");
const source = document.getElementById("benchmarks-data");
if (source) {
  const figures = JSON.parse(source.textContent);
  const plots = figures.map(addPlot);
  const drawAll = () => figures.forEach((figure, at) => draw(plots[at], figure));
  drawAll();
  onThemeChange(drawAll);
} else if ("waits" in page.dataset) {
  setTimeout(() => location.reload(), LOOK_AGAIN_MS);
}

function addPlot({ layout }) {
  const figure = document.createElement("figure");
  figure.className = "chart";
  const caption = figure.appendChild(document.createElement("figcaption"));
  caption.appendChild(document.createElement("b")).textContent = layout.title.text;
  caption.append(` ${layout.yaxis.title.text}`);
  const plot = figure.appendChild(document.createElement("div"));
  plot.className = "chart-plot";
  plot.setAttribute("aria-hidden", "true");
  document.getElementById("charts").append(figure);
  return plot;
}

async function draw(plot, { data }) {
  const Plotly = await loadPlotly();
  const grid = colour("line");
  const axis = { gridcolor: grid, linecolor: grid, zeroline: false, fixedrange: true, automargin: true };
  const traces = data.map((trace, at) => ({ ...trace, x: trace.x.map(asText), marker: { color: colour(FILLS[at % FILLS.length]) }, error_y: trace.error_y && { ...trace.error_y, color: colour("quiet") } }));
  await Plotly.react(plot, traces, {
    barmode: "group",
    margin: { l: 8, r: 8, t: 8, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("quiet") },
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("edge"), font: { color: colour("text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    showlegend: traces.length > 1,
    xaxis: { ...axis, showgrid: false },
    yaxis: { ...axis, rangemode: "tozero" },
  }, { displayModeBar: false, responsive: true });
}

// Plotly reads a little markup in labels; a name is text.
function asText(name) {
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
