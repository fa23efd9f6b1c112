// What can be taken from a chart: a picture, its numbers, a table; loaded when first asked for.
import { copyTable, toast } from "./actions.js";
import { asText, loadPlotly } from "./plotly.js";
import { placeName } from "./chart-words.js";
import { button, make, openDialog, say } from "./dom.js";
import { colour } from "./shell.js";

const PICTURE = { width: 1200, height: 600 };

export function fillMenu(menu, chart) {
  if (menu.children.length > 1) return;
  const list = make(
    "div",
    { className: "chart-menu-list" },
    button(say("Table of values"), () => openTable(chart)),
    button(say("PNG picture"), () => save(chart, "png")),
    button(say("SVG picture"), () => save(chart, "svg")),
    ...(chart.csv ? [make("a", { href: chart.csv, download: "", textContent: say("CSV of all points") })] : []),
    button(say("Copy as Markdown table"), () => copyTable(cells(chart)), "copies"),
  );
  list.addEventListener("click", () => {
    menu.open = false;
  });
  menu.append(list);
}

export function openTable(chart) {
  const scroll = make(
    "div",
    { className: "scroll chart-table", tabIndex: 0, role: "region", ariaLabel: say("Values") },
    table(chart),
  );
  const close = button(say("Close"), () => dialog.close());
  const dialog = openDialog(
    say("Values of {name}", { name: chart.title }),
    make("h2", { textContent: chart.title }),
    scroll,
    make("div", {}, close),
  );
  dialog.classList.add("is-wide");
  dialog.addEventListener("close", () => chart.figure.focus());
}

function table(chart) {
  const [head, ...rows] = cells(chart);
  const row = (tag, texts) =>
    make(
      "tr",
      {},
      ...texts.map((textContent) => make(tag, tag === "th" ? { textContent, scope: "col" } : { textContent })),
    );
  return make(
    "table",
    {},
    make("thead", {}, row("th", head)),
    make("tbody", {}, ...rows.map((texts) => row("td", texts))),
  );
}

// The drawn points as rows of text: x, then mean, lowest and highest of each series.
function cells({ series, xKind }) {
  const filled = series.filter(({ data }) => data.x.length);
  const isNamed = filled.length > 1;
  const names = filled.flatMap(({ label }) => {
    const name = isNamed ? label : "";
    return [say("{name} mean", { name }), say("{name} lowest", { name }), say("{name} highest", { name })];
  });
  const rows = new Map();
  filled.forEach(({ data }, column) =>
    data.x.forEach((x, at) => {
      const row = rows.get(x) ?? rows.set(x, Array(filled.length * 3).fill("")).get(x);
      [data.y, data.y_min ?? data.y, data.y_max ?? data.y].forEach((values, part) => {
        row[column * 3 + part] = values[at] === null ? say("no number") : String(Number(values[at].toPrecision(7)));
      });
    }),
  );
  const place = placeName(xKind);
  const words = (x) => (xKind === "time" ? new Date(x * 1000).toISOString() : String(Number(x.toPrecision(9))));
  const head = [place, ...names.map((text) => text.trim())];
  return [head, ...[...rows].sort(([one], [two]) => one - two).map(([x, row]) => [words(x), ...row])];
}

async function save(chart, format) {
  try {
    const Plotly = await loadPlotly();
    const { data, layout } = chart.drawing();
    const background = { paper_bgcolor: colour("surface"), plot_bgcolor: colour("surface") };
    const title = {
      text: asText(chart.title, 120),
      x: 0.02,
      xanchor: "left",
      font: { size: 18, color: colour("text") },
    };
    const figure = {
      data,
      layout: {
        ...layout,
        ...background,
        title,
        annotations: layout.annotations.map((label) => ({ ...label, text: asText(label.text) })),
        margin: { l: 24, r: 24, t: 56, b: 24 },
        font: { ...layout.font, size: 14 },
      },
    };
    const address = await Plotly.toImage(figure, { format, ...PICTURE, scale: format === "png" ? 2 : 1 });
    make("a", { href: address, download: `${chart.title.replace(/[^\w.-]+/g, "-").slice(0, 80)}.${format}` }).click();
  } catch (error) {
    toast(say("The picture could not be made: {error}", { error: error.message ?? error }), { bad: true });
  }
}
