// The bar above the charts: x, smoothing, log, outliers, reset.  Smoothing is kept for the next time, for each user.
export class ChartView {
  xKind = "step";
  logScale = false;
  clips = false;
  smooth = 0;

  // changed is told "x" where numbers have to be read anew, else "look".
  constructor(changed, reset) {
    const by = (name) => document.getElementById(`chart-${name}`);
    Object.assign(this, { x: by("x"), log: by("log"), outliers: by("outliers"), slider: by("smooth"), shown: by("smooth-shown") });
    this.key = `berth-smooth-${document.documentElement.dataset.user}`;
    this.slider.value = kept(this.key);
    this.#take();
    this.x.addEventListener("change", () => (this.#take(), changed("x")));
    for (const box of [this.log, this.outliers]) box.addEventListener("change", () => (this.#take(), changed("look")));
    this.slider.addEventListener("input", () => (this.#take(), this.#keep(), changed("look")));
    by("reset").addEventListener("click", () => {
      this.log.checked = this.outliers.checked = false;
      this.slider.value = 0;
      this.#take();
      this.#keep();
      reset();
    });
  }

  apply(chart) {
    const { xKind, logScale, clips, smooth } = this;
    Object.assign(chart, { xKind, logScale, clips, smooth });
  }

  #take() {
    Object.assign(this, { xKind: this.x.value, logScale: this.log.checked, clips: this.outliers.checked, smooth: Number(this.slider.value) });
    this.shown.textContent = this.smooth.toFixed(2);
  }

  #keep() {
    try {
      localStorage.setItem(this.key, this.slider.value);
    } catch {
      // A browser that keeps nothing: the choice holds for this page.
    }
  }
}

function kept(key) {
  try {
    return Number(localStorage.getItem(key)) || 0;
  } catch {
    return 0;
  }
}
