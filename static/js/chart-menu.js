// What can be taken from a chart: a picture, its numbers, a table; loaded when first asked for.
import { colour } from "./shell.js";
import { loadPlotly } from "./plotly.js";
import { toast } from "./toast.js";

const PICTURE = { width: 1200, height: 600 };

export function fillMenu(menu, chart) {
  if (menu.children.length > 1) return;
  const list = document.createElement("div");
  list.className = "chart-menu-list";
  list.append(
    button("Table of values", () => openTable(chart)),
    button("PNG picture", () => save(chart, "png")),
    button("SVG picture", () => save(chart, "svg")),
  );
  if (chart.csv) list.append(Object.assign(document.createElement("a"), { href: chart.csv, download: "", textContent: "CSV of all points" }));
  if (navigator.clipboard) list.append(button("Copy as Markdown table", () => copy(chart)));
  list.addEventListener("click", () => { menu.open = false; });
  menu.append(list);
}

export function openTable(chart) {
  const dialog = document.createElement("dialog");
  dialog.className = "dialog is-wide";
  const title = Object.assign(document.createElement("h2"), { textContent: chart.title });
  dialog.setAttribute("aria-label", `Values of ${chart.title}`);
  const scroll = Object.assign(document.createElement("div"), { className: "scroll chart-table", tabIndex: 0, role: "region" });
  scroll.setAttribute("aria-label", "Values");
  scroll.append(table(chart));
  const close = button("Close", () => dialog.close());
  const row = Object.assign(document.createElement("div"), { className: "row" });
  if (navigator.clipboard) row.append(button("Copy as Markdown table", () => copy(chart)));
  row.append(close);
  dialog.append(title, scroll, row);
  dialog.addEventListener("close", () => { dialog.remove(); chart.figure.focus(); });
  document.body.append(dialog);
  dialog.showModal();
}

function table(chart) {
  const [head, ...rows] = cells(chart);
  const element = document.createElement("table");
  const heads = element.createTHead().insertRow();
  for (const text of head) heads.append(Object.assign(document.createElement("th"), { textContent: text, scope: "col" }));
  const body = element.createTBody();
  for (const texts of rows) {
    const row = body.insertRow();
    for (const text of texts) row.insertCell().textContent = text;
  }
  return element;
}

// The drawn points as rows of text: x, then mean, lowest and highest of each series.
function cells({ series, xKind }) {
  const filled = series.filter(({ data }) => data.x.length);
  const isNamed = filled.length > 1;
  const names = filled.flatMap(({ label }) => ["mean", "lowest", "highest"].map((what) => (isNamed ? `${label} ${what}` : what)));
  const rows = new Map();
  filled.forEach(({ data }, column) => data.x.forEach((x, at) => {
    const row = rows.get(x) ?? rows.set(x, Array(filled.length * 3).fill("")).get(x);
    [data.y, data.y_min ?? data.y, data.y_max ?? data.y].forEach((values, part) => { row[column * 3 + part] = values[at] === null ? "not a number" : String(Number(values[at].toPrecision(7))); });
  }));
  const place = { step: "step", time: "time", relative: "minutes since its start" }[xKind];
  const words = (x) => (xKind === "time" ? new Date(x * 1000).toISOString() : String(Number(x.toPrecision(9))));
  return [[place, ...names], ...[...rows].sort(([one], [two]) => one - two).map(([x, row]) => [words(x), ...row])];
}

async function copy(chart) {
  const [head, ...rows] = cells(chart);
  const escape = (text) => text.replaceAll("|", "\\|").replace(/\s+/g, " ");
  const lines = [head, head.map(() => "---"), ...rows].map((row) => `| ${row.map(escape).join(" | ")} |`);
  await navigator.clipboard.writeText(lines.join("\n"));
  toast("The table is copied as Markdown.");
}

async function save(chart, format) {
  try {
    const Plotly = await loadPlotly();
    const { data, layout } = chart.drawing();
    const background = { paper_bgcolor: colour("surface"), plot_bgcolor: colour("surface") };
    const title = { text: asText(chart.title), x: 0.02, xanchor: "left", font: { size: 18, color: colour("text") } };
    const figure = { data, layout: { ...layout, ...background, title, margin: { l: 24, r: 24, t: 56, b: 24 }, font: { ...layout.font, size: 14 } } };
    const address = await Plotly.toImage(figure, { format, ...PICTURE, scale: format === "png" ? 2 : 1 });
    Object.assign(document.createElement("a"), { href: address, download: `${chart.title.replace(/[^\w.-]+/g, "-").slice(0, 80)}.${format}` }).click();
  } catch (error) {
    toast(`The picture could not be made: ${error.message ?? error}`, { bad: true });
  }
}

// Plotly reads a little markup in titles; a name is text.
function asText(name) {
  return name.slice(0, 120).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function button(text, run) {
  const element = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  element.addEventListener("click", run);
  return element;
}
