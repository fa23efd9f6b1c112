"""Metric columns: exactly once through crashes, exact pages by seq, attempts and steps as they come."""

import math
import os
import random
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orchestrator.exceptions import Unavailable
from orchestrator.store.metrics import columns
from orchestrator.store.metrics.series import (
    last_values,
    read_series,
    read_since,
    series_lengths,
    series_names,
    stored_seq,
)
from orchestrator.store.metrics.step_times import step_at
from orchestrator.store.metrics.writer import MOST_SERIES, MetricWriter, Point, points_of

STARTED = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "metrics"


def store(folder, points, attempt=1, committed=None, started_at=STARTED):
    with MetricWriter(folder, attempt, started_at, committed) as writer:
        writer.append(points)
        return writer.flush()


def line(step, **values):
    return points_of(step, STARTED + step, values)


def test_points_come_back_as_they_were(folder):
    store(folder, [*line(1, loss=0.5, lr=0.1), *line(2, loss=0.25, lr=0.1)])

    series = read_series(folder)

    assert series_names(folder) == ["loss", "lr"]
    assert series["loss"].as_json() == {
        "x": [1, 2], "y": [0.5, 0.25], "y_min": [0.5, 0.25], "y_max": [0.5, 0.25], "n": [1, 1],
        "bucket": 1, "total": 2, "nonfinite": [],
    }  # fmt: skip
    assert read_series(folder, names=["lr", "no such"]).keys() == {"lr"}
    assert (last_values(folder)["loss"].step, last_values(folder)["loss"].value) == (2, 0.25)


def test_a_job_without_metrics_is_empty(folder):
    assert read_series(folder) == {}
    assert last_values(folder) == {}
    assert read_since(folder, 0).points == {}
    assert stored_seq(folder) == 0


def test_time_leaves_the_gap_between_attempts_visible(folder):
    store(folder, line(1, loss=1.0))
    store(folder, [Point("loss", 1, STARTED + 1000.5, 2.0)], attempt=2, started_at=STARTED + 1000)

    assert read_series(folder, x="time")["loss"].x.tolist() == [STARTED + 1, STARTED + 1000.5]


def test_another_start_told_later_does_not_move_the_times(folder):
    committed = store(folder, line(1, loss=1.0))
    store(folder, line(2, loss=2.0), committed=committed, started_at=STARTED - 500)

    assert read_series(folder, x="time")["loss"].x.tolist() == [STARTED + 1, STARTED + 2]


def test_a_window_includes_both_ends(folder):
    store(folder, [point for step in range(10) for point in line(step, loss=step)])

    assert read_series(folder, start=3, end=5)["loss"].x.tolist() == [3, 4, 5]
    assert read_series(folder, x="time", start=STARTED + 3, end=STARTED + 3)["loss"].y.tolist() == [3]


def test_a_window_without_points_is_an_empty_series(folder):
    store(folder, line(1, loss=1.0))

    assert read_series(folder, start=50)["loss"].as_json()["x"] == []


def test_steps_repeated_after_a_resume_appear_once_from_the_newest(folder):
    store(folder, [point for step in range(60) for point in line(step, loss=1)])
    store(folder, [point for step in range(40, 50) for point in line(step, loss=2)], attempt=2)

    series = read_series(folder)["loss"]

    assert series.x.tolist() == list(range(60))
    assert series.y.tolist() == [1] * 40 + [2] * 10 + [1] * 10


@pytest.mark.code("B48")
def test_steps_that_go_back_keep_their_order(folder):
    steps = [5, 6, 7, 6, 7, -3, 2**62, 5]
    store(folder, [Point("loss", step, STARTED, float(step)) for step in steps])

    assert read_series(folder)["loss"].x.tolist() == steps
    assert last_values(folder)["loss"].step == 5


@pytest.mark.code("B48")
def test_many_steps_that_go_back_are_still_reduced(folder):
    steps = [step for _ in range(20) for step in range(500)]
    store(folder, [Point("loss", step, STARTED, float(step)) for step in steps])

    series = read_series(folder, max_points=100)["loss"]

    assert len(series.x) <= 100
    assert series.n.sum() == len(steps)


@pytest.mark.code("B48")
def test_steps_between_far_ends_stop_making_files(folder):
    committed = store(folder, [Point("loss", (-1) ** n * 2**61, STARTED, 1.0) for n in range(1000)])

    assert len(list((folder / "1").iterdir())) <= columns.MOST_SEGMENTS
    assert committed["dropped_points"] == 1000 - committed["seq"]


def test_a_run_of_months_starts_a_new_segment(folder):
    late = STARTED + 2**32 / 1000 + 5
    store(folder, [Point("loss", 1, STARTED, 1.0), Point("loss", 2, late, 2.0)])

    assert read_series(folder, x="time")["loss"].x.tolist() == pytest.approx([STARTED, late], abs=0.001)


def test_segments_survive_a_cut_and_a_reopening(folder):
    far = 2**40

    def point(step, value):
        return Point("loss", step, STARTED, value)

    first = store(folder, [point(1, 1), point(far, 2)])
    store(folder, [point(far + 1, 3), point(1, 4)], committed=first)  # never committed

    store(folder, [point(far + 1, 5)], committed=first)

    assert read_series(folder)["loss"].x.tolist() == [1, far, far + 1]
    assert read_series(folder)["loss"].y.tolist() == [1, 2, 5]


@pytest.mark.code("B47")
def test_what_is_not_a_number_is_flagged_and_not_averaged(folder):
    values = [1.0, math.nan, 3.0, math.inf, -math.inf, math.nan]
    store(folder, [Point("loss", step, STARTED, value) for step, value in enumerate(values)])

    raw = read_series(folder)["loss"].as_json()
    reduced = read_series(folder, max_points=3)["loss"].as_json()

    assert raw["y"] == [1.0, None, 3.0, None, None, None]
    assert raw["nonfinite"] == [(1, "nan"), (3, "inf"), (4, "-inf"), (5, "nan")]
    assert reduced["y"] == [1.0, 3.0, None]
    assert reduced["y_max"] == [1.0, 3.0, None]
    assert reduced["n"] == [1, 1, 0]
    assert reduced["nonfinite"] == [(1, "nan"), (3, "inf"), (4, "-inf"), (5, "nan")]


def test_means_of_huge_values_stay_finite(folder):
    store(folder, [Point("loss", step, STARTED, 1.7e308) for step in range(8)])

    assert read_series(folder, max_points=2)["loss"].y.tolist() == [1.7e308, 1.7e308]


def test_no_spike_is_lost(folder):
    rng = random.Random(3)  # noqa: S311 - a test's shuffle, not a secret
    spikes = rng.sample(range(100_000), 20)
    values = np.sin(np.arange(100_000))
    values[spikes] = 100.0
    store(folder, [Point("loss", step, STARTED, float(value)) for step, value in enumerate(values)])

    series = read_series(folder, max_points=500)["loss"]

    buckets = {
        int(x // series.bucket) for x, high in zip(series.x, series.y_max, strict=True) if high == 100.0
    }
    assert buckets == {int(step // series.bucket) for step in spikes}
    assert len(series.x) <= 500


def test_bucket_edges_stay_when_points_are_added(folder):
    points = [Point("loss", step, STARTED, float(step % 17)) for step in range(3000)]
    committed = store(folder, points[:2900])
    before = read_series(folder, max_points=500)["loss"]
    store(folder, points[2900:], committed=committed)
    after = read_series(folder, max_points=500)["loss"]

    assert before.bucket == after.bucket == 8
    count = len(before.x) - 1
    assert after.x[:count].tolist() == before.x[:count].tolist()
    assert after.y[:count].tolist() == before.y[:count].tolist()
    assert all(x % 8 == 0 for x in after.x)


@pytest.mark.code("B50")
def test_names_beyond_the_cap_are_dropped_and_counted(folder):
    committed = store(folder, [Point(f"m{n}", 1, STARTED, 1.0) for n in range(MOST_SERIES + 25)])

    assert len(series_names(folder)) == MOST_SERIES
    assert committed["dropped_series"] == 25
    assert committed["seq"] == MOST_SERIES


def test_names_never_become_paths(folder):
    names = ["../../x", "/etc/passwd", "a/b", "\u202e", "<img onerror>", "n" * 200, "."]
    store(folder, [Point(name, 1, STARTED, 1.0) for name in names])

    assert sorted(path.name for path in (folder / "1").iterdir()) == [f"{n}-0.col" for n in range(len(names))]
    assert series_names(folder) == names


def test_what_was_not_committed_is_cut_away(folder):
    first = store(folder, [*line(1, loss=1), *line(2, loss=2)])
    store(folder, [*line(3, loss=9, extra=9)], committed=first)

    again = store(folder, line(3, loss=3), committed=first)

    assert read_series(folder)["loss"].y.tolist() == [1, 2, 3]
    assert series_names(folder) == ["loss"]
    assert again["seq"] == 3


def test_without_a_commit_only_this_attempt_begins_anew(folder):
    store(folder, line(1, loss=1))
    store(folder, [*line(2, loss=2), *line(2, other=2)], attempt=2)

    store(folder, line(2, loss=3), attempt=2, committed=None)

    assert read_series(folder)["loss"].y.tolist() == [1, 3]
    assert series_names(folder) == ["loss"]


def test_lost_columns_are_told_and_can_be_read_again(folder):
    committed = store(folder, line(1, loss=1))
    os.truncate(folder / "1/0-0.col", 0)

    with pytest.raises(Unavailable, match="lost 1 points"):
        MetricWriter(folder, 1, STARTED, committed)
    store(folder, line(1, loss=1), committed=None)

    assert read_series(folder)["loss"].y.tolist() == [1]


def test_more_columns_than_open_files(folder, monkeypatch):
    monkeypatch.setattr(columns, "MOST_OPEN", 4)
    points = [Point(f"m{n}", step, STARTED, float(n)) for step in range(3) for n in range(20)]

    store(folder, points)

    assert all(series.y.tolist() == [n] * 3 for n, series in enumerate(read_series(folder).values()))


def test_one_layout_takes_one_journal_record(folder):
    committed = None
    for step in range(50):
        committed = store(folder, line(step, loss=1, lr=2, norm=3), committed=committed)

    assert committed is not None
    assert committed["journal_records"] == 1
    assert (folder / "journal").stat().st_size == 16


def test_what_was_stored_by_a_seq_is_known_also_when_rows_change_and_in_the_middle_of_one(folder):
    rows = [{"loss": 1.0}, {"loss": 2.0, "lr": 0.1}, {"loss": 3.0}, {"loss": 4.0, "lr": 0.2}]
    store(folder, [point for step, row in enumerate(rows) for point in line(step, **row)])

    assert series_lengths(folder) == {"loss": 4, "lr": 2}
    assert series_lengths(folder, until_seq=5) == {"loss": 4, "lr": 1}
    assert read_series(folder, until_seq=2)["loss"].y.tolist() == [1, 2]
    assert last_values(folder, until_seq=4)["loss"].value == 3


@pytest.mark.slow
def test_pages_by_seq_hold_every_point_once(folder):
    rng = random.Random(11)  # noqa: S311 - a test's shuffle, not a secret
    committed, expected = None, []
    for step in range(200):
        row = {name: rng.random() for name in rng.sample(["a", "b", "c"], rng.randint(1, 3))}
        committed = store(folder, line(step, **row), committed=committed)
        expected += [(name, step, value) for name, value in row.items()]

    got, seq = [], 0
    while seq < len(expected):
        until = min(len(expected), seq + rng.randint(1, 9))  # also in the middle of a row
        page = read_since(folder, seq, until_seq=until)
        got.append(
            {
                (name, x, y)
                for name, part in page.points.items()
                for x, y in zip(part["x"], part["y"], strict=True)
            }
        )
        assert page.seq == until
        assert got[-1] == set(expected[seq:until])
        seq = until


def test_a_seq_beyond_the_end_is_a_gap(folder):
    store(folder, line(1, loss=1))

    assert read_since(folder, 2).gap
    assert not read_since(folder, 1).gap


def test_a_long_absence_is_answered_with_buckets(folder):
    store(
        folder,
        [Point(name, step, STARTED + step, float(step == 777)) for step in range(9000) for name in "ab"],
    )

    page = read_since(folder, 0)

    assert page.reduced
    assert page.seq == 18_000
    assert sum(len(part["x"]) for part in page.points.values()) <= 2000
    assert all(
        max(high for high in part["y_max"] if high is not None) == 1.0 for part in page.points.values()
    )
    assert all(len(part["t"]) == len(part["x"]) for part in page.points.values())


def test_points_that_are_not_numbers_are_null_in_a_page(folder):
    store(folder, [Point("loss", 1, STARTED, math.nan), Point("loss", 2, STARTED, math.inf)])

    part = read_since(folder, 0).points["loss"]

    assert part["y"] == [None, None]
    assert part["nonfinite"] == [(1, "nan"), (2, "inf")]


def test_a_reader_beside_a_cut_names_file_does_not_fail(folder):
    store(folder, line(1, loss=1, lr=2))
    data = (folder / "names.jsonl").read_bytes()

    for length in range(len(data)):
        (folder / "names.jsonl").write_bytes(data[:length])
        assert read_series(folder).keys() <= {"loss", "lr"}
        read_since(folder, 0)
        last_values(folder)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 400), seed=st.integers(0, 1000))
def test_any_tail_of_a_lost_flush_is_cut(tmp_path_factory, cut, seed):
    """A power cut may keep any part of what was written after the commit."""
    folder = tmp_path_factory.mktemp("job") / "metrics"
    rng = random.Random(seed)  # noqa: S311 - a test's shuffle, not a secret
    rows = [
        line(step, **{name: float(step) for name in rng.sample("abcd", rng.randint(1, 4))})
        for step in range(12)
    ]
    committed = store(folder, [point for row in rows[:6] for point in row])
    shutil.copytree(folder, folder.with_name("before"))
    store(folder, [point for row in rows[6:] for point in row], committed=committed)
    for path in folder.rglob("*"):
        if path.is_file():
            before = folder.with_name("before") / path.relative_to(folder)
            kept = before.stat().st_size if before.exists() else 0
            os.truncate(path, max(kept, path.stat().st_size - rng.randint(0, cut)))

    store(folder, [point for row in rows[6:] for point in row], committed=committed)

    expected = {name: [p.step for row in rows for p in row if p.name == name] for name in "abcd"}
    assert {name: series.x.tolist() for name, series in read_series(folder).items()} == {
        name: steps for name, steps in expected.items() if steps
    }


class Columns(RuleBasedStateMachine):
    """The columns against a plain list, through flushes, commits that get lost, and new attempts."""

    def __init__(self):
        super().__init__()
        import tempfile
        from pathlib import Path

        self.place = Path(tempfile.mkdtemp())
        self.folder = self.place / "metrics"
        self.attempt, self.step = 1, 0
        self.committed, self.model = None, []
        self.pending = []
        self.writer = MetricWriter(self.folder, 1, STARTED, None)

    @rule(
        names=st.lists(st.sampled_from(["a", "b", "c/d", "e"]), min_size=1, max_size=4),
        back=st.integers(0, 3),
    )
    def report(self, names, back):
        self.step = max(0, self.step + 1 - back)
        points = [Point(name, self.step, STARTED + self.step, float(self.step)) for name in names]
        self.writer.append(points)
        self.pending += [(self.attempt, point) for point in points]

    @rule()
    def commit(self):
        self.committed = self.writer.flush()
        self.model += self.pending
        self.pending = []

    @rule(flushed=st.booleans())
    def crash(self, flushed):
        if flushed:
            self.writer.flush()  # the transaction after it never came
        self.writer.close()
        self.pending = []
        self.writer = MetricWriter(self.folder, self.attempt, STARTED, self.committed)

    @rule()
    def next_attempt(self):
        self.commit()
        self.writer.close()
        self.attempt += 1
        self.writer = MetricWriter(self.folder, self.attempt, STARTED, self.committed)

    @rule(after=st.integers(0, 40))
    def read_page(self, after):
        seq = len(self.model)
        page = read_since(self.folder, after, until_seq=seq)
        got = [(name, x) for name, part in page.points.items() for x in part["x"]]
        assert sorted(got) == sorted((point.name, point.step) for _, point in self.model[after:])

    @invariant()
    def committed_points_are_all_there(self):
        found = read_since(self.folder, 0, 10_000, until_seq=len(self.model))
        for name in {point.name for _, point in self.model}:
            expected = [point.step for _, point in self.model if point.name == name]
            assert found.points[name]["x"] == expected

    def teardown(self):
        self.writer.close()
        shutil.rmtree(self.place)


def test_the_step_at_a_time_lies_between_the_points_around_it(folder):
    assert step_at(folder, 1, STARTED) is None

    points = [Point("loss", step, STARTED + at_s, 1.0) for step, at_s in [(10, 1), (20, 2), (25, 2), (40, 5)]]
    store(folder, points)

    times = [0.5, 1.0, 1.5, 2.0, 3.0, 9.0]
    assert [step_at(folder, 1, STARTED + at_s) for at_s in times] == [10, 10, 17, 25, 30, 40]
    assert step_at(folder, 2, STARTED + 3) is None, "another attempt"


@pytest.mark.parametrize(
    ("last", "next_line", "step"),
    [
        ((39, 1.0), (40, 2.2), 40),  # printed, then saved, then read
        ((30, 1.9), (40, 2.15), 34),  # ten steps between two readings
        ((39, 1.0), (40, 3.0), 39),  # saved in the middle of a long step
        ((39, 1.95), (40, 2.05), 39),  # no reading comes so soon: these times are the run's own
    ],
)
def test_a_line_is_older_than_its_reading(folder, last, next_line, step):
    store(folder, [Point("loss", at, STARTED + at_s, 1.0) for at, at_s in [last, next_line, (50, 9.0)]])

    assert step_at(folder, 1, STARTED + 2, read_within_s=0.4) == step


Columns.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestColumns = pytest.mark.slow(Columns.TestCase)
