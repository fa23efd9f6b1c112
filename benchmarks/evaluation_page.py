"""The table and the chart of the evaluation, in ``docs/``."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from benchmarks.figures import ROOT

if TYPE_CHECKING:
    from benchmarks.evaluation import Cell

PAGE = ROOT / "docs" / "evaluation.md"
CHART = ROOT / "docs" / "pictures" / "evaluation.svg"
MIB = 2**20
_IMAGE = "![Peak memory of each run](pictures/evaluation.svg)\n\n"
_ROW, _BAR, _LEFT, _WIDTH = 26, 9, 190, 720
_PLAIN, _OURS, _LINE = "#9aa4b2", "#2f6fde", "#c0392b"


def write_page(cells: Sequence["Cell"], limit_bytes: int) -> None:
    """Replace the table between the page's marks, and the chart."""
    CHART.write_text(draw(cells, limit_bytes))
    page = PAGE.read_text()
    before, opening, rest = page.partition("<!-- evaluation -->\n")
    _, closing, after = rest.partition("<!-- /evaluation -->")
    if not (opening and closing):
        raise RuntimeError(
            f"{PAGE.name} has no place for the table: <!-- evaluation --> and <!-- /evaluation -->."
        )
    PAGE.write_text(f"{before}{opening}{_IMAGE}{make_table(cells)}{closing}{after}")


def make_table(cells: Sequence["Cell"]) -> str:
    lines = [
        "| architecture | batch | precision | plain loop | Lightning | Berth | Berth's plan | peak, plain | peak, Berth | speed over plain |",
        "|---|---:|---|---|---|---|---|---:|---:|---:|",
    ]
    for cell in cells:
        speed = (
            f"{cell.ours_samples_s / cell.plain_samples_s:.2f}"
            if cell.ours_samples_s and cell.plain_samples_s
            else ""
        )
        lines.append(
            f"| {cell.architecture} | {cell.batch} | {cell.precision} | {cell.plain} | {cell.lightning or 'not installed'} "
            f"| {cell.ours} | {cell.plan} | {_mib(cell.plain_peak_bytes)} | {_mib(cell.ours_peak_bytes)} | {speed} |"
        )
    return "\n".join([*lines, ""])


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / MIB:.1f} MiB"


def draw(cells: Sequence["Cell"], limit_bytes: int) -> str:
    """Draw the peak of each run as a bar, plain above ours, with the limit as a line."""
    most = 1.15 * max(limit_bytes, *(cell.ours_peak_bytes or 0 for cell in cells))
    scale = (_WIDTH - _LEFT - 20) / most
    height = 40 + _ROW * len(cells)
    limit = _LEFT + limit_bytes * scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="11">',
        "<title>Peak memory of a plain loop and of Berth under one limit</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="16">plain loop (grey), Berth (blue), limit {limit_bytes / MIB:.0f} MiB (red)</text>',
    ]
    for number, cell in enumerate(cells):
        top = 30 + number * _ROW
        label = escape(f"{cell.architecture}, {cell.batch}, {cell.precision}")
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 13}" text-anchor="end">{label}</text>')
        parts.append(_bar(top, cell.plain_peak_bytes, scale, _PLAIN, cell.plain))
        parts.append(_bar(top + _BAR + 1, cell.ours_peak_bytes, scale, _OURS, cell.ours))
    parts.append(
        f'<line x1="{limit:.1f}" x2="{limit:.1f}" y1="24" y2="{height - 8}" stroke="{_LINE}"/></svg>'
    )
    return "\n".join([*parts, ""])


def _bar(top: int, size: int | None, scale: float, color: str, ended: str) -> str:
    if size is None:
        return f'<text x="{_LEFT + 4}" y="{top + 8}" fill="{color}" font-size="9">{escape(ended)}</text>'
    return f'<rect x="{_LEFT}" y="{top}" width="{size * scale:.1f}" height="{_BAR}" fill="{color}"/>'
