"""History of device readings: one record every two seconds, one file for each device and day."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.files.untrusted import remove_tree
from orchestrator.store.metrics.buckets import Series, SeriesJson, reduce_series

MEASURES = ("memory_used_bytes", "utilization_percent", "temperature_c", "power_w")
RECORD_MS = 2_000
RETENTION_DAYS = 14
DAY_MS = 86_400_000
# ms counts from the start of the day (UTC); values are mean, minimum, maximum; NaN where a reading lacks them.
RECORD = np.dtype([("ms", "<u4"), ("values", "<f4", (len(MEASURES), 3))])


@dataclass(slots=True)
class _Window:
    """Readings of one device within one record."""

    number: int
    readings: list[list[float]] = field(default_factory=lambda: [[] for _ in MEASURES])


class DeviceHistory:
    """Writes and reads the history below one folder.  Only the agent writes; any process may read.

    The newest two seconds are in memory only; a crash loses no more than those.
    """

    def __init__(self, folder: Path, *, retention_days: int = RETENTION_DAYS) -> None:
        self._folder = folder
        self._retention_days = retention_days
        self._windows: dict[str, _Window] = {}

    def append(
        self,
        device_id: str,
        at_s: float,
        *,
        memory_used_bytes: float | None = None,
        utilization_percent: float | None = None,
        temperature_c: float | None = None,
        power_w: float | None = None,
    ) -> None:
        """Add one reading; None for what the device does not report."""
        number = int(at_s * 1000) // RECORD_MS
        window = self._windows.get(device_id)
        if window is None or window.number != number:
            if window is not None:
                self._write(device_id, window)
            window = self._windows[device_id] = _Window(number)
        values = (memory_used_bytes, utilization_percent, temperature_c, power_w)
        for readings, value in zip(window.readings, values, strict=True):
            if value is not None:
                readings.append(value)

    def flush(self) -> None:
        """Write the open records; call when readings stop."""
        for device_id, window in self._windows.items():
            self._write(device_id, window)
        self._windows.clear()

    def read(self, device_id: str, start_s: float, end_s: float, max_points: int = 500) -> dict[str, Series]:
        """Buckets of every measure in the window; x is seconds since 1970.

        Leaves out measures without any value.  Where readings are more than two buckets apart, one empty bucket
        (n 0) stands between them, so that a chart shows the gap.
        """
        ms, values = self._records(device_id, int(start_s * 1000), int(end_s * 1000))
        series = {}
        for index, name in enumerate(MEASURES):
            given = ~np.isnan(values[:, index, 0])
            if given.any():
                series[name] = _reduce(ms[given], values[given, index], max_points)
        return series

    def records(self, device_id: str, start_s: float, end_s: float) -> Iterator[tuple[float, list[float]]]:
        """Every record in the window: seconds since 1970; mean, minimum and maximum of each measure, NaN if missing."""
        ms, values = self._records(device_id, int(start_s * 1000), int(end_s * 1000))
        for at_ms, row in zip(ms.tolist(), values.reshape(len(ms), 3 * len(MEASURES)).tolist(), strict=True):
            yield at_ms / 1000, row

    def newest(self, device_id: str, count: int) -> list[tuple[float, list[float]]]:
        """The last records of the newest day, oldest first, as ``records`` gives them; reads only these."""
        path = max(self._device_folder(device_id).glob("*.rec"), key=_day, default=None)
        if path is None:
            return []
        with path.open("rb") as file:
            there = path.stat().st_size // RECORD.itemsize
            file.seek(max(0, there - count) * RECORD.itemsize)
            records = np.frombuffer(file.read(min(there, count) * RECORD.itemsize), RECORD)
        times = (records["ms"].astype(np.int64) + _day(path) * DAY_MS) / 1000
        values = records["values"].astype(np.float64).reshape(len(records), 3 * len(MEASURES))
        return list(zip(times.tolist(), values.tolist(), strict=True))

    def drop_old(self, *, now: float | None = None) -> int:
        """Remove the days beyond the retention; returns the number of files."""
        first = int((time.time() if now is None else now) * 1000) // DAY_MS - self._retention_days
        old = [path for path in self._folder.glob("*/*.rec") if _day(path) < first]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def forget(self, device_id: str) -> None:
        """Remove all history of a device."""
        self._windows.pop(device_id, None)
        remove_tree(self._device_folder(device_id))

    def _write(self, device_id: str, window: _Window) -> None:
        record = np.zeros(1, RECORD)
        record["values"] = np.nan
        day, record["ms"] = divmod(window.number * RECORD_MS, DAY_MS)
        for index, readings in enumerate(window.readings):
            if readings:
                record["values"][0, index] = sum(readings) / len(readings), min(readings), max(readings)
        path = self._device_folder(device_id) / f"{day}.rec"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            # A record that a crash cut short would shift all later ones.
            if file.tell() % RECORD.itemsize:
                file.truncate(file.tell() // RECORD.itemsize * RECORD.itemsize)
            file.write(record.tobytes())

    def _records(
        self, device_id: str, start_ms: int, end_ms: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        times, values = [np.empty(0, np.int64)], [np.empty((0, len(MEASURES), 3), np.float64)]
        for path in self._days(device_id, start_ms // DAY_MS, end_ms // DAY_MS):
            data = path.read_bytes()
            records = np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
            times.append(records["ms"].astype(np.int64) + _day(path) * DAY_MS)
            values.append(records["values"].astype(np.float64))
        ms, rows = np.concatenate(times), np.concatenate(values)
        inside = (ms >= start_ms - RECORD_MS) & (ms <= end_ms)
        ms, rows = ms[inside], rows[inside]
        order = np.argsort(ms, kind="stable")  # the clock may have been set back
        return ms[order], rows[order]

    def _days(self, device_id: str, first: int, last: int) -> Iterator[Path]:
        paths = self._device_folder(device_id).glob("*.rec")
        return iter(sorted((path for path in paths if first <= _day(path) <= last), key=_day))

    def _device_folder(self, device_id: str) -> Path:
        """The folder of a device.  Ids come from drivers: characters other than letters and digits are escaped."""
        return self._folder / re.sub(r"[^A-Za-z0-9-]", lambda match: f"_{ord(match[0]):x}_", device_id)


def _day(path: Path) -> int:
    return int(path.stem)


def _reduce(ms: NDArray[np.int64], values: NDArray[np.float64], max_points: int) -> Series:
    mean = reduce_series(ms, values[:, 0], max_points, unit=0.001, least_width=RECORD_MS)
    low = reduce_series(ms, values[:, 1], max_points, unit=0.001, least_width=RECORD_MS).y_min
    high = reduce_series(ms, values[:, 2], max_points, unit=0.001, least_width=RECORD_MS).y_max
    return _with_gaps(Series(mean.x, mean.y, low, high, mean.n, mean.bucket, mean.total))


def _with_gaps(series: Series) -> Series:
    before = np.flatnonzero(np.diff(series.x) > 2.5 * series.bucket) + 1
    gaps = np.full(len(before), np.nan)
    return Series(
        x=np.insert(series.x.astype(np.float64), before, series.x[before - 1] + series.bucket),
        y=np.insert(series.y, before, gaps),
        y_min=np.insert(series.y_min, before, gaps),
        y_max=np.insert(series.y_max, before, gaps),
        n=np.insert(series.n, before, 0),
        bucket=series.bucket,
        total=series.total,
    )


def reading_json(history: Mapping[str, Series]) -> dict[str, SeriesJson]:
    """The history in the form of the REST API."""
    return {name: series.as_json() for name, series in history.items()}
