"""The grid of strategies: every cell measured or told why not, and advice with its evidence."""

import json
from pathlib import Path

import pytest

from training.bench import __main__ as bench
from training.bench.cells import Cell, Measured, from_json, make_cells, scaling_efficiency, why_not
from training.bench.page import make_figures, make_page
from training.bench.recommend import advise


def measured(
    strategy: str, gpus: int, step_s: float, *, batch: int = 64, mib: int = 100, jitter: float = 0.01
) -> Measured:
    steps = [step_s * (1 + jitter * (number % 3 - 1)) for number in range(12)]
    return Measured(Cell(strategy, gpus, batch), batch * gpus, steps, mib << 20, 0.2 if gpus > 1 else None)


GRID = [
    measured("ddp", 1, 0.10),
    measured("ddp", 2, 0.12, mib=400),
    measured("fsdp", 2, 0.15, mib=150),
    Measured(Cell("dp", 2, 64), not_measured="there is no GPU here."),
]


def test_cells_are_all_combinations_once() -> None:
    cells = make_cells(["ddp", "fsdp", "ddp"], [2, 1], [128, 64, 64])

    assert len(cells) == 8
    assert cells[0] == Cell("ddp", 1, 64)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Cell("dp", 1, 64), "no GPU"),
        (Cell("single", 2, 64), "one device"),
        (Cell("pipeline", 1, 64), "two devices"),
        (Cell("ddp", 2, 64), ""),
    ],
)
def test_cells_that_cannot_be_measured_give_a_reason(cell: Cell, expected: str) -> None:
    reason = why_not(cell, 0, has_gpu=False)

    assert expected in reason
    assert bool(reason) == bool(expected)


def test_missing_gpus_are_reported() -> None:
    assert why_not(Cell("ddp", 4, 64), 2, has_gpu=True) == "4 GPUs are requested and 2 are visible."


def test_efficiency_is_over_the_fastest_single_device() -> None:
    assert scaling_efficiency(GRID)[Cell("ddp", 2, 64)] == pytest.approx(100 * 0.10 / 0.12)
    assert Cell("dp", 2, 64) not in scaling_efficiency(GRID)


def test_advice_names_the_best_its_lead_its_scaling_and_what_needs_less() -> None:
    assert advise(GRID) == [
        "Take ddp on 2 GPUs with batch size 64: 1,067 samples/s (±1 %, 12 steps), 25 % ahead of fsdp on 2 GPUs "
        "with batch size 64.",
        "It scales well: 83 % of 2 times the fastest single device; 20 % of a step is exchange between ranks.",
        "If memory is short, fsdp needs 150 MiB instead of 400 and is 20 % slower.",
    ]


def test_lead_within_the_spread_does_not_count() -> None:
    close = [measured("ddp", 1, 0.100, jitter=0.2), measured("zero1", 1, 0.101, jitter=0.2)]

    advice = advise(close)

    assert "only 1 % ahead, within the spread, of zero1" in advice[0]
    assert "measure again" in advice[-1]


def test_simpler_of_two_within_the_spread_is_advised() -> None:
    close = [measured("single", 1, 0.101, jitter=0.2), measured("fsdp", 1, 0.100, jitter=0.2)]

    first = advise(close)[0]

    assert first.startswith("Take single on 1 GPU ")
    assert first.endswith(
        "fsdp on 1 GPU with batch size 64 makes 1 % more, which is within the spread, at more effort."
    )


def test_advice_mentions_that_more_devices_do_not_pay() -> None:
    advice = advise([measured("ddp", 1, 0.1), measured("ddp", 2, 0.5)], has_gpu=False)

    assert advice[1].startswith("More devices do not pay for this model: ddp on 2 CPU ranks")


def test_advice_without_results_says_so() -> None:
    assert advise(GRID[3:]) == ["Nothing could be measured; the table shows why."]


def test_results_survive_their_file() -> None:
    assert [from_json(json.loads(json.dumps(each.to_json()))) for each in GRID] == GRID


def test_page_contains_charts_advice_and_reasons_as_text() -> None:
    odd = Measured(Cell("ddp", 1, 1), not_measured="<script>alert(1)</script>")

    page = make_page([*GRID, odd], ["Take ddp & go"], "here")

    sizes = {trace["meta"]["batch_size"] for figure in make_figures(GRID) for trace in figure["data"]}
    assert sizes == {each.cell.batch_size for each in GRID if each.step_s}
    assert page.count('class="plotly-graph-div"') == len(make_figures(GRID)) == 4
    assert "Take ddp &amp; go" in page
    assert "not measured here: there is no GPU here." in page
    assert "<script>alert" not in page


@pytest.mark.slow
def test_a_small_grid_is_measured_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--gpus", "1", "2", "--batch-sizes", "8", "--steps", "4"]
    bench.main(["--strategies", "dp", "ddp", "fsdp", *sizes, "--output", str(tmp_path)])

    record = json.loads((tmp_path / bench.RESULTS).read_text())
    rows = [from_json(row) for row in record["cells"]]
    assert [bool(row.step_s) for row in rows] == [False, False, True, True, True, True]
    assert all(len(row.step_s) == 4 and row.peak_bytes > 0 for row in rows[2:])
    assert rows[3].samples_per_step == 16
    assert [row.communication is not None for row in rows[2:]] == [False, True, False, True]
    assert all(0 < (row.communication or 0) < 1 for row in (rows[3], rows[5]))
    assert record["advice"][0] in capsys.readouterr().out
    assert "<h1>Strategies compared</h1>" in (tmp_path / bench.PAGE).read_text()


def test_only_one_rank_of_a_job_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "1")

    bench.main(["--output", str(tmp_path / "grid")])

    assert not (tmp_path / "grid").exists()


def test_invalid_number_is_refused_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--gpus", "0"])

    assert "'0' is not a whole number above 0" in capsys.readouterr().err
