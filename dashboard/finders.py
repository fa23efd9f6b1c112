"""Finds the static files that come inside Python packages."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import plotly
from django.contrib.staticfiles.finders import BaseFinder
from django.core.checks import CheckMessage
from django.core.files.storage import FileSystemStorage

PLOTLY = "vendor/plotly.min.js"


class PlotlyFinder(BaseFinder):
    """Serves the plotly.js of the installed ``plotly`` package as ``vendor/plotly.min.js``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.folder = Path(plotly.__file__).parent / "package_data"
        self.storage = FileSystemStorage(location=self.folder)
        self.storage.prefix = "vendor"  # type: ignore[attr-defined]  # collectstatic reads it, the types do not know
        super().__init__(*args, **kwargs)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return []

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        found = str(self.folder / "plotly.min.js") if path == PLOTLY else None
        if kwargs.get("find_all") or kwargs.get("all"):
            return [found] if found else []
        return found

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[Any]:
        yield "plotly.min.js", self.storage
