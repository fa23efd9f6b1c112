// Bars: the cells of a grid of strategies, and GPU-hours in parts that add up; the tables below say the same in numbers.
import { asText, barLayout, loadPlotly } from "./plotly.js";
import { by, make, say } from "./dom.js";
import { colour, onThemeChange } from "./shell.js";

const LOOK_AGAIN_MS = 5000;
const FILLS = ["accent", "info", "warning", "bad", "quiet", "text"];
const PARTS = [
  // name in the data, label, colour
  ["good", say("used"), "accent"],
  ["failed", say("lost"), "bad"],
  ["idle", say("held but idle"), "warning"],
];
const LONGEST_LABEL = 24;
const CONFIG = { displayModeBar: false, responsive: true };

const source = by("benchmarks-data");
if (source) {
  const figures = JSON.parse(source.textContent);
  const plots = figures.map(addPlot);
  const drawAll = () => figures.forEach((figure, at) => drawGrid(plots[at], figure));
  drawAll();
  onThemeChange(drawAll);
} else if ("waits" in (by("benchmarks")?.dataset ?? {})) {
  setTimeout(() => location.reload(), LOOK_AGAIN_MS);
}

function addPlot({ layout }) {
  const plot = make("div", { className: "chart-plot", ariaHidden: "true" });
  const caption = make("figcaption", {}, make("b", { textContent: layout.title.text }), ` ${layout.yaxis.title.text}`);
  by("charts").append(make("figure", { className: "chart" }, caption, plot));
  return plot;
}

async function drawGrid(plot, { data }) {
  const Plotly = await loadPlotly();
  const traces = data.map((trace, at) => ({
    ...trace,
    x: trace.x.map((name) => asText(name)),
    marker: { color: colour(FILLS[at % FILLS.length]) },
    error_y: trace.error_y && { ...trace.error_y, color: colour("quiet") },
  }));
  await Plotly.react(plot, traces, barLayout({ barmode: "group", showlegend: traces.length > 1 }), CONFIG);
}

const usage = by("usage-data");
const figure = by("usage-chart");
if (usage && figure) {
  const data = JSON.parse(usage.textContent);
  drawUsage(data);
  onThemeChange(() => drawUsage(data));
}

async function drawUsage(data) {
  const Plotly = await loadPlotly();
  const places = [...data.keys.keys()];
  const traces = PARTS.filter(([name]) => data[name].some((hours) => hours > 0)).map(([name, label, fill]) => ({
    type: "bar",
    name: label,
    x: places,
    y: data[name],
    marker: { color: colour(fill) },
    hovertemplate: `%{y:,.1f} h ${label}<extra></extra>`,
  }));
  const layout = barLayout({
    barmode: "stack",
    bargap: places.length < 4 ? 0.8 : 0.2,
    hovermode: "x unified",
    showlegend: traces.length > 1,
    xaxis: { tickmode: "array", tickvals: places, ticktext: data.keys.map((name) => asText(name, LONGEST_LABEL)) },
    yaxis: { ticksuffix: " h" },
  });
  await Plotly.react(figure.querySelector(".chart-plot"), traces, layout, CONFIG);
}
