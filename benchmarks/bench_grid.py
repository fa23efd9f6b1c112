"""How long the strategy benchmark itself takes: all strategies that the CPU can run, two batch sizes, one and two ranks."""

import time
from typing import get_args

from benchmarks.figures import Figure, Outcome
from training.bench.cells import make_cells
from training.bench.recommend import advise
from training.bench.runner import Setting, run_grid
from training.config.plan import StrategyName

FIGURES = (
    Figure("grid_s", "s", "all CPU strategies, 2 batch sizes, 1 and 2 ranks", target=60),
    Figure("grid_cells", "", "cells of it that were measured"),
)


def measure() -> Outcome:
    cells = make_cells(get_args(StrategyName), [1, 2], [64, 128])
    began_s = time.monotonic()
    measured = run_grid(cells, Setting())
    took_s = time.monotonic() - began_s
    outcome = Outcome({"grid_s": took_s, "grid_cells": sum(bool(each.step_s) for each in measured)})
    outcome.details["advice"] = advise(measured, has_gpu=False)
    outcome.details["cells"] = [
        {**each.to_json(), "step_s": None, "not_measured": each.not_measured} for each in measured
    ]
    return outcome
