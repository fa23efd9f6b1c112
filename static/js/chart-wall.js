// Which charts are shown, how large, in what order, and a formula of the reader's own; all of it is in the address.
import { Chart } from "./charts.js";
import { by, keepInAddress, say, write } from "./dom.js";

const PARTS = { find: "charts", size: "size", order: "order", formula: "formula" }; // controls and their names in the address

export class ChartWall {
  #chart = null; // of the formula
  #read = null; // the module that reads formulas
  #text = "";
  #parts = null;

  constructor(box, changed) {
    this.box = box;
    this.changed = changed;
    const address = new URLSearchParams(location.search);
    for (const [name, parameter] of Object.entries(PARTS)) {
      this[name] = by(`chart-${name}`);
      this[name].value = address.get(parameter) ?? this[name].value;
      this[name].addEventListener("input", () => {
        keepInAddress(parameter, this[name].value.trim());
        this.#change();
      });
    }
    if (Object.values(PARTS).some((parameter) => address.has(parameter))) by("chart-layout").open = true;
    this.box.classList.toggle("is-large", this.size.value === "large");
  }

  // The charts that the reader wants, in the order wanted.
  choose(charts) {
    const words = this.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = charts.filter((names) => words.every((word) => names.join(" ").toLowerCase().includes(word)));
    const none = words.length > 0 && !found.length;
    write(by("chart-found"), none ? say("No chart has this name.") : "");
    return this.order.value === "name" ? found.toSorted(([one], [two]) => one.localeCompare(two)) : found;
  }

  async drawFormula(metrics) {
    const text = this.formula.value.trim();
    if (!text) return this.#forget();
    this.#read ??= await import("./formula.js");
    if (text !== this.#text) {
      this.#text = text;
      this.#parts = this.#read.parse(text, metrics.series.keys());
      this.#chart?.remove();
      this.#chart = null;
    }
    const data = this.#parts && this.#read.evaluate(this.#parts, metrics.series);
    this.formula.setAttribute("aria-invalid", !data);
    write(by("chart-formula-said"), data ? "" : say("Write names of metrics with + - * / and brackets."));
    if (!data) return undefined;
    this.#chart ??= new Chart(by("chart-own"), { title: text });
    metrics.view.apply(this.#chart);
    this.#chart.show([{ label: text, colour: metrics.colour, data: metrics.toView(data) }]);
    return undefined;
  }

  #forget() {
    this.#chart?.remove();
    this.#chart = null;
    this.#text = "";
    this.formula.removeAttribute("aria-invalid");
    write(by("chart-formula-said"), "");
  }

  #change() {
    this.box.classList.toggle("is-large", this.size.value === "large");
    this.changed();
  }
}
