"""``python -m training.bench --strategies ddp fsdp --gpus 1 2 --batch-sizes 64 128``: measure, advise, write a report."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from training.bench.cells import Measured, make_cells
from training.bench.page import make_figures, make_page
from training.bench.recommend import advise, name_of
from training.bench.runner import Setting, count_gpus, run_grid
from training.config.plan import StrategyName
from training.report import default_reporter

RESULTS, PAGE = "grid.json", "grid.html"


def main(arguments: Sequence[str] | None = None) -> None:
    if os.environ.get("RANK", "0") != "0":
        return  # under torchrun, rank 0 is enough: it starts the ranks of each cell itself
    options = _parse(arguments)
    cells = make_cells(options.strategies, options.gpus, options.batch_sizes)
    setting = Setting(options.steps, options.precision, options.model, options.data)
    reporter = default_reporter()
    reporter.total_steps(len(cells))
    has_gpu = count_gpus()[1]

    def show_progress(number: int, measured: Measured) -> None:
        result = f"{measured.samples_per_s:,.0f} samples/s" if measured.step_s else measured.not_measured
        print(f"[{number + 1}/{len(cells)}] {name_of(measured.cell, has_gpu=has_gpu)}: {result}", flush=True)  # noqa: T201
        reporter.report(number + 1, samples_per_s=measured.samples_per_s)

    began_s = time.monotonic()
    measured = run_grid(cells, setting, show_progress)
    took_s = time.monotonic() - began_s
    advice = advise(measured, has_gpu=has_gpu)
    write(options.output, measured, advice, took_s, has_gpu=has_gpu)
    for sentence in advice:
        print(sentence)  # noqa: T201
    print(f"More in {options.output / PAGE} ({took_s:.0f} s)", flush=True)  # noqa: T201


def write(
    folder: Path, measured: Sequence[Measured], advice: Sequence[str], took_s: float, *, has_gpu: bool
) -> None:
    """Write ``grid.json`` for programs and ``grid.html`` for people."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = f"{'GPUs' if has_gpu else 'CPU'}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    about = f"{time.strftime('%Y-%m-%d %H:%M')} on {machine}; {took_s:.0f} s for {len(measured)} cells."
    record = {
        "v": 1,
        "about": about,
        "has_gpu": has_gpu,
        "took_s": round(took_s, 1),
        "advice": [*advice],
        "cells": [each.to_json() for each in measured],
        "figures": make_figures(measured),
    }
    (folder / RESULTS).write_text(json.dumps(record))
    (folder / PAGE).write_text(make_page(measured, advice, about))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training.bench", description="Compare strategies.")
    parser.add_argument(
        "--strategies", nargs="+", choices=get_args(StrategyName), default=["ddp", "fsdp"], metavar="NAME",
        help=", ".join(get_args(StrategyName)),
    )  # fmt: skip
    parser.add_argument(
        "--gpus",
        nargs="+",
        type=_positive,
        default=[1, 2],
        metavar="N",
        help="numbers of GPUs, or of CPU ranks without GPUs",
    )
    parser.add_argument("--batch-sizes", nargs="+", type=_positive, default=[64], metavar="N")
    parser.add_argument("--steps", type=_positive, default=12, help="timed steps per cell (default 12)")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument(
        "--model", type=Path, help="file with build_model() and build_dataset(path) (default: built-in)"
    )
    parser.add_argument("--data", help="argument of build_dataset")
    output = os.environ.get("BERTH_OUTPUT_DIR", "benchmark")
    parser.add_argument(
        "--output", type=Path, default=Path(output), help=f"folder of the report (default {output})"
    )
    options = parser.parse_args(arguments)
    if options.model is not None and not options.model.is_file():
        parser.error(f"{options.model} is not a file; name the Python file that has build_model()")
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


if __name__ == "__main__":
    main(sys.argv[1:])
