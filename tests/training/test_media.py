"""Pictures, histograms, tables and texts: plain files for the page, whatever a script gives."""

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training import media
from training.media import INDEX, PNG_MAGIC
from training.report import Reporter

Entries = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found: Path = tmp_path / "media"
    monkeypatch.setenv("BERTH_MEDIA_DIR", str(found))
    return found


@pytest.fixture
def entries(folder: Path, reporter: Reporter) -> Entries:
    def read() -> list[dict[str, Any]]:
        reporter.flush()
        index = folder / INDEX
        return [json.loads(line) for line in index.read_text().splitlines()] if index.exists() else []

    return read


def pixels_of(path: Path) -> np.ndarray[Any, Any]:
    """The pixels of a PNG without filters, with every checksum looked at."""
    data, parts = path.read_bytes(), {}
    assert data.startswith(PNG_MAGIC)
    at = len(PNG_MAGIC)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        parts[name] = body
        at += 12 + length
    width, height, _, colours = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    channels = {0: 1, 2: 3, 6: 4}[colours]
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + width * channels)
    return rows[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize(
    ("image", "corner"),
    [
        (np.full((2, 3, 3), 7, np.uint8), [7, 7, 7]),
        (torch.full((3, 4, 5), 1.0), [255, 255, 255]),
        (torch.zeros(4, 5, dtype=torch.bfloat16), [0]),
        (np.eye(4, dtype=bool), [255]),
        (np.full((2, 2, 4), 200), [200, 200, 200, 200]),
    ],
)
def test_an_image_of_any_common_layout_becomes_a_png(image, corner, folder, reporter, entries):
    reporter.report(step=3, image={"val/samples": image}, loss=0.5)

    (entry,) = entries()
    assert (entry["step"], entry["kind"], entry["name"]) == (3, "image", "val/samples")
    assert pixels_of(folder / entry["file"])[0, 0].tolist() == corner


def test_a_tensor_changed_after_its_report_keeps_the_reported_picture(folder, reporter, entries):
    image = torch.zeros(2, 2)

    reporter.report(step=1, image=image)
    image += 1

    assert pixels_of(folder / entries()[0]["file"]).max() == 0


def test_histogram_counts_each_finite_value_and_tells_how_many_were_not(folder, reporter, entries):
    reporter.report(step=1, histogram=torch.tensor([0.0, 1.0, 1.0, float("nan"), float("inf")]))

    told = json.loads((folder / entries()[0]["file"]).read_text())
    assert (sum(told["counts"]), told["not_finite"], len(told["edges"])) == (3, 2, media.BINS + 1)


@pytest.mark.parametrize(
    "table",
    [
        {"word": ["a", "b"], "score": [1, float("nan")]},
        {"columns": ["word", "score"], "rows": [["a", 1], ["b", np.float32("nan")]]},
        [{"word": "a", "score": 1}, {"word": "b", "score": torch.tensor(float("nan"))}],
    ],
)
def test_a_table_of_columns_rows_or_dicts_is_the_same_table(table, folder, reporter, entries):
    reporter.report(step=1, table=table)

    told = json.loads((folder / entries()[0]["file"]).read_text())
    assert told == {"columns": ["word", "score"], "rows": [["a", 1], ["b", "nan"]], "rows_total": 2}


def test_long_tables_and_texts_are_cut_and_say_how_long_they_were(folder, reporter, entries):
    reporter.report(step=1, table=[[1]] * 5_000, text="x" * 100_000)

    table, text = (json.loads((folder / each["file"]).read_text()) for each in entries())
    assert (len(table["rows"]), table["rows_total"]) == (media.MOST_ROWS, 5_000)
    assert (len(text["text"]), text["characters"]) == (media.LONGEST_TEXT, 100_000)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"image": np.full((2, 2), np.nan)}, "the image has NaN or infinite values"),
        ({"image": np.full((2, 2), 3.0)}, "values of a float64 image go from 0 to 1; these from 3 to 3"),
        ({"image": np.array([["a", "b"]])}, "an image has numbers, not <U1"),
        ({"image": np.zeros((5, 3, 2, 2))}, "this is 5x3x2x2"),
        ({"image": np.zeros((3_000, 2), np.uint8)}, "at most 2048 pixels a side"),
        ({"image": np.broadcast_to(np.uint8(0), (1_000_000, 3, 224, 224))}, "report a part of them"),
        ({"image": b"GIF89a"}, "has to be a PNG"),
        ({"image": object()}, "an image has numbers, not object"),
        ({"histogram": [float("nan")] * 2}, "none of its values is finite"),
        ({"table": {"a": [1], "b": [1, 2]}}, "is longer than argument 1"),
        ({"text": 7j}, "a text is a str, not complex"),
    ],
)
def test_what_cannot_be_kept_is_told_once_and_the_training_goes_on(
    values, reason, reporter, lines, entries, capfd
):
    reporter.report(step=1, **values)
    reporter.report(step=2, loss=0.5, **values)

    told = lines()
    assert [each["loss"] for each in told if "loss" in each] == [0.5]
    assert len([each for each in told if each.get("event") == "unreadable_value"]) == 1
    assert reason in capfd.readouterr().err
    assert entries() == []


def test_the_folder_has_a_limit_and_what_is_beyond_it_is_told(reporter, entries, monkeypatch, capfd):
    monkeypatch.setattr(media, "MOST_FILES", 3)
    for step in range(5):
        reporter.report(step=step, text="a")
        reporter.flush()

    assert [each["step"] for each in entries()] == [0, 1, 2]
    assert "an attempt keeps 3; report every so many steps" in capfd.readouterr().err


def test_a_number_of_such_a_name_is_still_a_metric(reporter, lines, entries):
    reporter.report(step=1, text=0.5, histogram=torch.tensor(2.0), table=3)

    assert [(each["text"], each["histogram"], each["table"]) for each in lines()] == [(0.5, 2.0, 3)]
    assert entries() == []


def test_outside_of_berth_nothing_is_written(tmp_path, monkeypatch, reporter):
    monkeypatch.delenv("BERTH_MEDIA_DIR", raising=False)
    reporter.report(step=1, text="nobody shows this")
    reporter.flush()

    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
