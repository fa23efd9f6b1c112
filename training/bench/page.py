"""The report of a grid: charts of throughput, scaling efficiency and memory, advice and a table."""

from collections.abc import Sequence
from html import escape
from typing import Any, TypedDict

from training.bench.cells import Measured, scaling_efficiency

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#1c2330}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid "
    "#d9dee7}td:first-child,th:first-child,.text{text-align:left}.advice{font-size:1.1rem}"
)


class Figure(TypedDict):
    """A Plotly figure."""

    data: list[Any]
    layout: Any


def make_figures(measured: Sequence[Measured]) -> list[Figure]:
    """Make Plotly figures as plain data: one group of bars per strategy, one bar per batch size."""
    done = [each for each in measured if each.step_s]
    efficiency = scaling_efficiency(done)
    error = {each.cell: each.samples_per_s * each.spread_percent / 100 for each in done}
    exchange = {each.cell: 100 * each.communication for each in done if each.communication is not None}
    figures = [
        _bars(done, "Throughput", "samples/s", {each.cell: each.samples_per_s for each in done}, error),
        _bars(done, "Scaling efficiency", "% of n x one device", efficiency),
        _bars(done, "Peak memory of a rank", "MiB", {each.cell: each.peak_bytes / 2**20 for each in done}),
    ]
    if exchange:
        figures.append(_bars(done, "Exchange between ranks", "% of a step", exchange))
    return figures


def make_page(measured: Sequence[Measured], advice: Sequence[str], about: str) -> str:
    """Make a self-contained page with Plotly inside, which needs no network.

    Without the ``plotly`` package, the page says so instead of showing charts.
    """
    charts = _charts(make_figures(measured))
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in advice)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Strategies compared</title>'
        f"<style>{_STYLE}</style><h1>Strategies compared</h1><p>{escape(about)}</p>"
        f'<section class="advice">{paragraphs}</section>{charts}{_table(measured)}</html>'
    )


def _bars(
    done: Sequence[Measured],
    title: str,
    unit: str,
    values: dict[Any, float],
    error: dict[Any, float] | None = None,
) -> Figure:
    traces = []
    for size in sorted({each.cell.batch_size for each in done}):
        cells = [each.cell for each in done if each.cell.batch_size == size and each.cell in values]
        trace: dict[str, object] = {
            "type": "bar",
            "name": f"batch size {size}",
            "meta": {"batch_size": size},  # for names in other languages
            "x": [f"{cell.strategy} x{cell.gpus}" for cell in cells],
            "y": [round(values[cell], 3) for cell in cells],
        }
        if error is not None:
            trace["error_y"] = {"type": "data", "array": [round(error[cell], 3) for cell in cells]}
        traces.append(trace)
    layout = {
        "title": {"text": title},
        "barmode": "group",
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
    }
    return {"data": traces, "layout": layout}


def _charts(figures: Sequence[Figure]) -> str:
    try:
        from plotly.io import to_html
    except ImportError:
        return "<p>Install plotly to see charts here (python -m pip install plotly).</p>"
    parts = []
    for number, figure in enumerate(figures):
        parts.append(to_html(figure, full_html=False, include_plotlyjs=number == 0, validate=False))
    return "".join(parts)


def _table(measured: Sequence[Measured]) -> str:
    efficiency = scaling_efficiency(measured)
    rows = []
    for each in measured:
        cell = each.cell
        head = f"<td>{escape(cell.strategy)}</td><td>{cell.gpus}</td><td>{cell.batch_size}</td>"
        if each.step_s:
            percent = f"{efficiency[cell]:.0f} %" if cell in efficiency else ""
            waits = "" if each.communication is None else f"{100 * each.communication:.0f} %"
            rest = (
                f"<td>{each.samples_per_s:,.1f}</td><td>±{each.spread_percent:.1f} %</td><td>{percent}</td>"
                f"<td>{each.peak_bytes / 2**20:,.0f}</td><td>{waits}</td>"
            )
        else:
            rest = f'<td class="text" colspan="5">not measured here: {escape(each.not_measured)}</td>'
        rows.append(f"<tr>{head}{rest}</tr>")
    names = (
        "Strategy",
        "Devices",
        "Batch size",
        "Samples/s",
        "Spread",
        "Efficiency",
        "Memory (MiB)",
        "Exchange",
    )
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>{''.join(rows)}</table>"
