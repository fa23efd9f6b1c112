"""Pictures of curves, one panel above the other, in the format of the file's ending.  Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from training.config import ConfigError

_WIDTH, _HEIGHT = 800, 240  # of a panel, in pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 20, 40, 35  # around the curve
_LINE, _INK, _FRAME = "#1f77b4", "#222222", "#bbbbbb"


@dataclass(frozen=True, slots=True)
class _Panel:
    top: int
    texts: list[tuple[int, int, str]]  # left, top, text
    points: list[tuple[float, float]]

    @property
    def frame(self) -> tuple[int, int, int, int]:
        return _LEFT, self.top + _TOP, _WIDTH - _RIGHT, self.top + _HEIGHT - _BOTTOM


def write_curves(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """Plot each curve over the index of its values, from 1; skip values that are not finite.

    Raises:
        ConfigError: the file's ending is unknown; the message lists the known ones.
    """
    write = _FORMATS.get(path.suffix.lower())
    if write is None:
        raise ConfigError(
            f"{path.name!r} has no known picture format; the name can end in {', '.join(_FORMATS)}."
        )
    write(curves, path)


def _write_html(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    try:
        from plotly.io import to_html
    except ImportError as error:
        raise _missing(path, "plotly") from error
    parts = []
    for number, (name, values) in enumerate(curves.items()):
        figure = {"data": [{"type": "scatter", "y": [*values]}], "layout": {"title": {"text": name}}}
        parts.append(to_html(figure, full_html=False, include_plotlyjs=number == 0, validate=False))
    path.write_text(f"<!doctype html><meta charset=utf-8>{''.join(parts)}")


def _write_svg(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    panels = _lay_out(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT * len(panels)}" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for panel in panels:
        left, top, right, bottom = panel.frame
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in panel.points)
        parts.append(
            f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="none" stroke="{_FRAME}"/>'
            f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="2"/>'
        )
        parts += [
            f'<text x="{x}" y="{y + 11}" fill="{_INK}">{escape(text)}</text>' for x, y, text in panel.texts
        ]
    path.write_text("".join([*parts, "</svg>"]))


def _write_pixels(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise _missing(path, "pillow") from error
    panels = _lay_out(curves)
    image = Image.new("RGB", (_WIDTH, _HEIGHT * len(panels)), "white")
    draw: Any = ImageDraw.Draw(image)
    for panel in panels:
        draw.rectangle(panel.frame, outline=_FRAME)
        if panel.points:
            draw.line([*panel.points], fill=_LINE, width=2)
        for x, y, text in panel.texts:
            draw.text((x, y), text, fill=_INK)
    image.save(path)  # in the format of the ending


def _missing(path: Path, package: str) -> ConfigError:
    return ConfigError(
        f"{path.name!r} needs {package}, which is not installed here: python -m pip install {package}, "
        "or use a name that ends in .svg."
    )


_FORMATS: dict[str, Callable[[Mapping[str, Sequence[float]], Path], None]] = {
    ".png": _write_pixels,
    ".pdf": _write_pixels,
    ".svg": _write_svg,
    ".html": _write_html,
}


def _lay_out(curves: Mapping[str, Sequence[float]]) -> list[_Panel]:
    return [
        _make_panel(name, values, number * _HEIGHT) for number, (name, values) in enumerate(curves.items())
    ]


def _make_panel(name: str, values: Sequence[float], top: int) -> _Panel:
    finite = [(number, value) for number, value in enumerate(values) if isfinite(value)]
    low = min((value for _, value in finite), default=0.0)
    high = max((value for _, value in finite), default=0.0)
    panel = _Panel(top, [(_LEFT, top + 15, name)], [])
    left, upper, right, lower = panel.frame
    for number, value in finite:
        x = left + (right - left) * number / max(len(values) - 1, 1)
        share = (value - low) / (high - low) if high > low else 0.5
        panel.points.append((x, lower - (lower - upper) * share))
    panel.texts.extend([(10, lower - 13, f"{low:.4g}"), (10, upper, f"{high:.4g}")])
    panel.texts.extend([(left, lower + 8, "1"), (right - 40, lower + 8, str(len(values)))])
    return panel
