// GPU-hours as bars in three parts that add up; the table below says the same in numbers.
import { loadPlotly } from "./plotly.js";
import { colour, onThemeChange, startShell } from "./shell.js";

const PARTS = [
  { name: "good", label: "kept", fill: "accent" },
  { name: "failed", label: "lost", fill: "bad" },
  { name: "idle", label: "held but idle", fill: "warning" },
];
const LONGEST_LABEL = 24;

startShell();
const data = JSON.parse(document.getElementById("usage-data").textContent);
const figure = document.getElementById("usage-chart");
if (figure && data.keys.length) {
  figure.hidden = false;
  draw();
  onThemeChange(draw);
}

async function draw() {
  const Plotly = await loadPlotly();
  const grid = colour("line");
  const axis = { gridcolor: grid, linecolor: grid, zeroline: false, fixedrange: true, automargin: true };
  const traces = PARTS.filter(({ name }) => data[name].some((hours) => hours > 0)).map(({ name, label, fill }) => ({
    type: "bar", name: label, x: data.keys.map((_, at) => at), y: data[name], marker: { color: colour(fill) }, hovertemplate: `%{y:,.1f} h ${label}<extra></extra>`,
  }));
  await Plotly.react(figure.querySelector(".chart-plot"), traces, {
    barmode: "stack",
    margin: { l: 8, r: 8, t: 8, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("quiet") },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("edge"), font: { color: colour("text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    showlegend: traces.length > 1,
    xaxis: { ...axis, tickmode: "array", tickvals: data.keys.map((_, at) => at), ticktext: data.keys.map(asText), showgrid: false },
    yaxis: { ...axis, rangemode: "tozero", ticksuffix: " h" },
  }, { displayModeBar: false, responsive: true });
}

// Plotly reads a little markup in labels; a name is text.
function asText(name) {
  const short = name.length > LONGEST_LABEL ? `${name.slice(0, LONGEST_LABEL)}…` : name;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
