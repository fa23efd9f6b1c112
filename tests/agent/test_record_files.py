"""CSV and JSON-lines files in which a script keeps its training: its curves, if nothing else tells them."""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import follow_records
from orchestrator.agent.follow import Follower
from orchestrator.agent.telemetry.metric_lines import ParsedBatch
from orchestrator.agent.telemetry.sources import Sources
from orchestrator.models import Attempt, Job, JobState
from orchestrator.store.metrics.series import read_series
from tests.jobs.folders import make_folder

pytestmark = pytest.mark.usefixtures("home", "db")

Reader = Callable[..., Job]


@pytest.fixture
def run(make_attempt, home) -> Attempt:
    """A running attempt with its folders."""
    attempt: Attempt = make_attempt(state=JobState.RUNNING)
    make_folder(attempt)
    for folder in (home.job(attempt.job_id).work, home.job(attempt.job_id).output):
        folder.mkdir(parents=True, exist_ok=True)
    return attempt


@pytest.fixture
def read(run, monkeypatch) -> Iterator[Reader]:
    """Reads what is new, with one follower, which looks for files each time."""
    monkeypatch.setattr(follow_records, "SEARCH_EVERY_S", 0.0)
    follower = Follower(Attempt.objects.select_related("job").get(pk=run.pk))

    def poll(*, at_end: bool = False) -> Job:
        while follower.poll(at_end=at_end):
            pass
        return Job.objects.get(pk=run.job_id)

    yield poll
    follower.close()


def grow(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def curve(home: Any, attempt: Attempt, name: str) -> list[tuple[int, float]]:
    series = read_series(home.job(attempt.job_id).metrics, [name])
    return (
        [(int(x), float(y)) for x, y in zip(series[name].x, series[name].y, strict=True)]
        if name in series
        else []
    )


def test_a_log_of_keras_becomes_curves_and_progress(run, read, home):
    path = home.job(run.job_id).work / "training.log"
    grow(path, "epoch,accuracy,loss,val_loss", "0,0.5,1.0,1.1")
    read()
    grow(path, "1,0.6,0.8,0.9")
    read()
    grow(path, "2,0.7,0.7,")

    job = read()

    assert (job.step, job.step_unit, job.last_values["loss"]) == (2, "epoch", 0.7)
    assert curve(home, run, "loss") == [(0, 1.0), (1, 0.8), (2, 0.7)]
    assert curve(home, run, "val_loss") == [(0, 1.1), (1, 0.9)]


def test_json_lines_count_steps_and_a_last_line_without_its_end_is_read_at_the_end(run, read, home):
    path = home.job(run.job_id).output / "metrics.jsonl"
    grow(path, json.dumps({"step": 10, "loss": 1.0, "name": "x", "lr": 0.1}))
    read()
    grow(path, json.dumps({"step": 20, "loss": float("nan")}))
    read()
    with path.open("a") as file:
        file.write(json.dumps({"step": 30, "loss": 0.5}))
    assert read().step == 20

    job = read(at_end=True)

    assert (job.step, job.step_unit, job.diverged_step) == (30, "step", 20)
    assert [step for step, _ in curve(home, run, "loss")] == [10, 20, 30]


def test_steps_that_begin_again_in_each_epoch_are_counted_on(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    grow(path, "epoch,iter,loss")
    read()
    grow(path, *(f"{epoch},{at},0.5" for epoch in (1, 2, 3) for at in (0, 5)))

    assert read().step == 25


def test_files_of_a_training_and_of_its_validation_are_two_curves(run, read, home):
    for name in ("train.csv", "val.csv"):
        grow(home.job(run.job_id).work / name, "step,loss", "1,1.0")
    read()
    for name in ("train.csv", "val.csv"):
        grow(home.job(run.job_id).work / name, "2,0.9")
    read()

    assert curve(home, run, "loss") == [(1, 1.0), (2, 0.9)]
    assert curve(home, run, "val_loss") == [(1, 1.0), (2, 0.9)]


def test_a_file_that_is_written_anew_with_more_columns_gives_each_value_once(run, read, home):
    path = home.job(run.job_id).work / "metrics.csv"
    grow(path, "step,loss", "1,1.0")
    read()
    grow(path, "2,0.9")
    read()
    path.write_text("step,loss,val_loss\n1,1.0,\n2,0.9,1.5\n3,0.8,\n")
    read()

    assert curve(home, run, "loss") == [(1, 1.0), (2, 0.9), (3, 0.8)]
    assert curve(home, run, "val_loss") == [(2, 1.5)]


def test_what_the_log_tells_is_not_told_again(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    grow(path, "epoch,loss", "1,1.0")
    make_folder(run).log(0).write_text("Epoch 1/3: loss 1.0\n")
    read()
    grow(path, "2,0.9")

    job = read(at_end=True)

    assert (job.step, job.total_steps) == (1, 3)
    assert curve(home, run, "loss") == [(1, 1.0)]


def test_a_file_without_a_row_that_counts_silences_no_log(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    grow(path, "epoch,loss", "0.25,1.0")
    read()
    grow(path, "0.5,0.9")
    read()
    make_folder(run).log(0).write_text("step 7/9 loss 0.7\n")

    job = read(at_end=True)

    assert (job.step, job.total_steps) == (7, 9)
    assert curve(home, run, "loss") == [(7, 0.7)]


def test_printed_epochs_name_no_end_for_the_steps_of_a_file(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    log = make_folder(run).log(0)
    log.write_text("Epoch 1/3\n")
    grow(path, "step,loss", "1,1.0")
    read()
    grow(path, "2,0.9")
    read()
    grow(path, "3,0.8")
    log.write_text("Epoch 1/3\nEpoch 2/3\n")

    job = read(at_end=True)

    assert (job.step, job.step_unit, job.total_steps) == (3, "step", None)


def test_what_the_run_reports_itself_takes_the_place_of_its_files(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    grow(path, "epoch,loss", "1,1.0")
    read()
    grow(path, "2,0.9")
    read()
    with make_folder(run).metrics.open("a") as file:
        file.write('{"step": 500, "loss": 0.4}\n')
    read()
    grow(path, "3,0.8")

    job = read(at_end=True)

    assert (job.step, job.step_unit) == (500, "step")
    assert curve(home, run, "loss") == [(500, 0.4)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("name,age,loss\n", "ada,3,0.5\n"),  # no step
        ("step,age\n", "1,3\n"),  # no measure
        ("step\n", "1\n"),
        ("no table at all, only words\n", "and more words\n"),
        ('{"step": 1, "age": 3}\n', '{"step": 2, "age": 3}\n'),
        ("[" * 100_000, "]\n"),
        ("2026-01-01 INFO epoch 1, loss 0.5\n", "2026-01-01 INFO epoch 2, loss 0.4\n"),
        ("\x00\xff,step,loss\n" * 3, "1,2,3\n"),
    ],
)
def test_other_files_are_left_alone(first, second, run, read, home):
    path = home.job(run.job_id).work / "data.csv"
    path.write_text(first)
    read()
    with path.open("a") as file:
        file.write(second)

    job = read(at_end=True)

    assert (job.step, job.last_values) == (None, {})


def test_a_file_that_does_not_grow_is_data(run, read, home):
    path = home.job(run.job_id).work / "history.csv"
    grow(path, "epoch,loss", "1,1.0", "2,0.9")
    read()

    assert read(at_end=True).step is None


def test_links_are_not_followed(run, read, home, tmp_path):
    outside = tmp_path / "outside.csv"
    grow(outside, "step,loss", "1,1.0")
    (home.job(run.job_id).work / "log.csv").symlink_to(outside)
    read()
    grow(outside, "2,0.9")

    assert read(at_end=True).step is None


def test_a_folder_that_became_a_link_is_not_read(run, read, home, tmp_path):
    folder = home.job(run.job_id).work / "logs"
    folder.mkdir()
    grow(folder / "log.csv", "step,loss", "1,1.0")
    read()
    grow(folder / "log.csv", "2,0.9")
    read()
    (tmp_path / "others").mkdir()
    (tmp_path / "others/log.csv").write_text((folder / "log.csv").read_text() + "3,0.1\n")
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(tmp_path / "others")

    assert read(at_end=True).step == 2


def test_rows_from_before_the_attempt_are_passed_over(run, read, home):
    path = home.job(run.job_id).output / "log.csv"
    grow(path, "step,loss", "1,1.0", "2,0.9")
    os.utime(path, (time.time() - 3600,) * 2)
    read()
    grow(path, "3,0.8")
    read()

    assert curve(home, run, "loss") == [(3, 0.8)]


def test_where_a_file_was_read_to_outlasts_the_agent(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    grow(path, "step,loss", "1,1.0")
    read()
    grow(path, "2,0.9")
    read()
    grow(path, "3,0.8")
    another = Follower(Attempt.objects.select_related("job").get(pk=run.pk))
    while another.poll():
        pass
    another.close()

    assert curve(home, run, "loss") == [(1, 1.0), (2, 0.9), (3, 0.8)]


BAR = "{0}%|#         | {0}/100 [00:01<00:09, 10.00it/s]\n"


def test_a_bar_without_values_does_not_hide_a_file(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    log = make_folder(run).log(0)
    grow(path, "epoch,loss", "1,1.0")
    log.write_text(BAR.format(10))
    read()
    grow(path, "2,0.9")
    with log.open("a") as file:
        file.write(BAR.format(90))
    read()
    grow(path, "3,0.8")

    job = read(at_end=True)

    assert (job.step, job.step_unit, job.total_steps) == (3, "epoch", None)
    assert curve(home, run, "loss") == [(1, 1.0), (2, 0.9), (3, 0.8)]


def test_a_second_attempt_that_writes_its_file_anew_has_all_its_rows(run, read, home):
    path = home.job(run.job_id).output / "log.csv"
    grow(path, "step,loss", *(f"{step},9.0" for step in range(1, 9)))
    os.utime(path, (time.time() - 3600,) * 2)
    read()
    path.write_text("step,loss\n1,0.5\n")
    read()
    grow(path, "2,0.4")
    read()
    grow(path, *(f"{step},0.3" for step in range(3, 12)))
    read()

    assert curve(home, run, "loss") == [(1, 0.5), (2, 0.4), *((step, 0.3) for step in range(3, 12))]


def test_an_agent_that_starts_again_passes_over_an_earlier_attempt(run, read, home):
    path = home.job(run.job_id).output / "log.csv"
    grow(path, "step,loss", "1,1.0", "2,0.9")
    os.utime(path, (time.time() - 3600,) * 2)
    read()
    grow(path, "3,0.8")
    another = Follower(Attempt.objects.select_related("job").get(pk=run.pk))
    another.poll()
    grow(path, "4,0.7")
    another.poll()
    another.close()

    assert curve(home, run, "loss") == [(3, 0.8), (4, 0.7)]


def test_rows_that_were_written_again_with_other_lengths_are_read_from_the_beginning(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    grow(path, "step,loss", "1,1.0")
    read()
    grow(path, "2,0.9")
    read()
    path.write_text("step,loss\n1,1\n2,0.9\n3,0.8\n")
    read()

    assert curve(home, run, "loss") == [(1, 1.0), (2, 0.9), (3, 0.8)]


def test_a_dataset_does_not_hide_the_log(run, read, home):
    job = home.job(run.job_id)
    for index in range(40):
        (job.work / f"{index}.json").write_text("{}")
    for index in range(5_100):
        (job.work / f"{index}.jpg").touch()
    path = job.output / "logs/log.csv"
    path.parent.mkdir()
    grow(path, "step,loss", "1,1.0")
    read()
    grow(path, "2,0.9")

    assert read().step == 2


def test_annotations_beside_the_log_do_not_hide_it(run, read, home):
    job = home.job(run.job_id)
    for index in range(40):
        (job.work / f"{index}.json").write_text("{}")
    read()
    path = job.work / "log.csv"
    grow(path, "step,loss", "1,1.0")
    read()
    grow(path, "2,0.9")

    assert read().step == 2


def test_a_search_that_finds_nothing_new_waits_longer(home, run, monkeypatch):
    at_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at_s[0])
    job = home.job(run.job_id)
    grow(job.work / "log.csv", "step,loss", "1,1.0")
    files = follow_records.RecordFiles(job, 0.0, None)
    searched = []
    for _ in range(400):
        before = files.searched_s
        files.read(ParsedBatch(), Sources({}), 0.0)
        if files.searched_s != before:
            searched.append(at_s[0])
        at_s[0] += 1
    waits = [after - before for before, after in itertools.pairwise(searched)]

    assert waits[:6] == [2, 4, 8, 16, 32, 60]
    assert set(waits[6:]) == {60}


def test_files_of_a_session_are_its_owners(run, home, monkeypatch):
    monkeypatch.setattr(follow_records, "SEARCH_EVERY_S", 0.0)
    run.job.spec_fields = {**run.job.spec_fields, "kind": "session"}
    run.job.save()
    follower = Follower(Attempt.objects.select_related("job").get(pk=run.pk))
    path = home.job(run.job_id).work / "log.csv"
    for step in (1, 2, 3):
        grow(path, *(["step,loss"] if step == 1 else []), f"{step},1.0")
        follower.poll()
    follower.close()

    assert curve(home, run, "loss") == []


def test_a_metric_belongs_to_its_file_whatever_the_order_in_the_database(run, read, home):
    for name in ("train.csv", "other.csv"):
        grow(home.job(run.job_id).work / name, "step,loss" if name == "train.csv" else "step,acc", "1,1.0")
    read()
    for name in ("train.csv", "other.csv"):
        grow(home.job(run.job_id).work / name, "2,0.9")
    read()
    stored = Attempt.objects.get(pk=run.pk)
    files = stored.followed["record_files"]
    stored.followed["record_files"] = dict(reversed(files.items()))
    stored.save()
    for name in ("train.csv", "other.csv"):
        grow(home.job(run.job_id).work / name, "3,0.8")
    another = Follower(Attempt.objects.select_related("job").get(pk=run.pk))
    another.poll()
    another.close()

    assert len(files) == 2
    assert [step for step, _ in curve(home, run, "loss")] == [1, 2, 3]
    assert [step for step, _ in curve(home, run, "acc")] == [1, 2, 3]


def test_the_file_of_a_test_does_not_move_the_training(run, read, home):
    work = home.job(run.job_id).work
    grow(work / "train.csv", "step,loss", "1,1.0")
    grow(work / "test_out.csv", "step,loss", "3000,1.0")
    read()
    grow(work / "train.csv", "5,0.9")
    grow(work / "test_out.csv", "4000,0.9")

    assert read().step == 5
    assert curve(home, run, "test_loss") == [(3000, 1.0), (4000, 0.9)]


def test_rows_whose_values_come_from_elsewhere_move_nothing(run, read, home):
    work = home.job(run.job_id).work
    grow(work / "a.csv", "step,loss,acc", "1,1.0,0.1")
    read()
    grow(work / "a.csv", "2,0.9,0.2")
    grow(work / "b.csv", "step,loss", "1,1.0")
    read()
    grow(work / "b.csv", "2,0.9", "900,0.1")

    assert read().step == 2


def test_a_column_that_is_not_measured_in_each_epoch_raises_no_alarm(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    grow(path, "epoch,loss,val_loss", "1,1.0,nan")
    read()
    grow(path, "2,0.9,nan")
    read()
    grow(path, "3,0.8,0.5", "4,nan,0.5")

    assert read().diverged_step == 4
    assert curve(home, run, "val_loss") == [(3, 0.5), (4, 0.5)]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("best.json", '{"step": 9, "loss": 0.5}\n', '{"step": 10, "loss": 0.5}\n'),
        ("best.csv", "step,loss\n9,0.5\n", "step,loss\n10,0.5\n"),
        ("best.csv", "step,loss\n9,0.5\n", "step,loss\n1000000,0.500000001\n"),
    ],
)
def test_a_file_of_one_line_that_is_replaced_is_not_followed(name, first, second, run, read, home):
    path = home.job(run.job_id).work / name
    path.write_text(first)
    read()
    path.write_text(second)

    assert read(at_end=True).step is None


def test_a_table_that_is_written_as_a_whole_each_time_is_followed(run, read, home):
    path = home.job(run.job_id).work / "log.csv"
    for rows in (1, 2, 3, 4):
        width = "0" * rows
        path.write_text("step,loss\n" + "".join(f"{row},0.{width}{row}\n" for row in range(1, rows + 1)))
        read()

    assert [step for step, _ in curve(home, run, "loss")] == [1, 2, 3, 4]


def test_a_first_line_of_settings_hides_no_rows(run, read, home):
    path = home.job(run.job_id).work / "20260101.log.json"
    grow(path, '{"env_info": "x", "seed": 3}')
    read()
    for step in (50, 100, 150):
        grow(path, json.dumps({"mode": "train", "epoch": 1, "iter": step, "loss": 0.5}))
        read()
    grow(path, json.dumps({"mode": "val", "epoch": 1, "iter": 20, "loss": 0.7}))

    assert read().step == 150
    assert [step for step, _ in curve(home, run, "loss")] == [50, 100, 150]
    assert curve(home, run, "val_loss") == [(150, 0.7)]


def test_a_validation_that_counts_epochs_does_not_hide_the_training_that_counts_steps(run, read, home):
    work = home.job(run.job_id).work
    grow(work / "val.csv", "epoch,loss", "1,1.0")
    read()
    grow(work / "val.csv", "2,0.9")
    grow(work / "train.csv", "step,loss", "100,1.0")
    read()
    grow(work / "train.csv", "200,0.9")

    job = read()

    assert (job.step, job.step_unit) == (200, "step")
    assert curve(home, run, "loss") == [(100, 1.0), (200, 0.9)]


def test_a_run_that_is_over_is_searched_once(run, home):
    files = follow_records.RecordFiles(home.job(run.job_id), 0.0, None)
    for at_end in (False, True, True):
        before = files.searched_s
        files.read(ParsedBatch(), Sources({}), 0.0, at_end=at_end)

    assert files.searched_s == before


def test_a_file_whose_name_is_no_text_is_left_out(run, read, home):
    """PostgreSQL stores no such name, so the attempt would never end."""
    folder = home.job(run.job_id).work
    for name in ("donn\udce9es.csv", "old\udce9.csv", "text.csv"):
        grow(folder / name, "step,loss", "1,1.0")
    os.utime(folder / "old\udce9.csv", (0, 0))
    read()
    for name in ("donn\udce9es.csv", "text.csv"):
        grow(folder / name, "2,0.9")

    assert read().step == 2
    followed = Attempt.objects.get(pk=run.pk).followed
    assert list(followed["record_files"]) == ["work/text.csv"]
    assert followed["earlier_records"] == {}


def test_files_that_grow_at_once_are_opened_a_few_in_a_search(run, home, monkeypatch):
    monkeypatch.setattr(follow_records, "SEARCH_EVERY_S", 0.0)
    monkeypatch.setattr(follow_records, "MOST_OPENED", 1)
    files = follow_records.RecordFiles(home.job(run.job_id), 0.0, None)
    paths = [home.job(run.job_id).work / f"{number}.csv" for number in range(3)]
    followed = []
    for lines in (("step,loss", "1,1.0"), ("2,0.9",), (), ()):
        for path in paths:
            grow(path, *lines)
        files.read(ParsedBatch(), Sources({}), 0.0)
        followed.append(len(files.files))

    assert followed == [0, 1, 2, 3]


def test_files_that_a_script_makes_and_removes_are_forgotten(run, home, monkeypatch):
    monkeypatch.setattr(follow_records, "SEARCH_EVERY_S", 0.0)
    monkeypatch.setattr(follow_records, "MOST_REMEMBERED", 10)
    files = follow_records.RecordFiles(home.job(run.job_id), time.time(), None)
    for turn in range(5):
        paths = [home.job(run.job_id).work / f"{turn}-{number}.json" for number in range(10)]
        for path in paths:
            grow(path, "{}")
            os.utime(path, (0, 0))
        files.read(ParsedBatch(), Sources({}), 0.0)
        if turn < 4:
            for path in paths:
                path.unlink()

    assert set(files.earlier) == {f"work/4-{number}.json" for number in range(10)}


def test_long_files_are_read_in_turns(run, home, monkeypatch):
    monkeypatch.setattr(follow_records, "SEARCH_EVERY_S", 0.0)
    files = follow_records.RecordFiles(home.job(run.job_id), 0.0, None)
    paths = {name: home.job(run.job_id).work / f"{name}.csv" for name in ("a", "b", "c")}
    for name, path in paths.items():
        grow(path, f"step,loss_{name}", "0,1")
    files.read(ParsedBatch(), Sources({}), 0.0)
    for path in paths.values():
        grow(path, *(f"{step},1" for step in range(1, 40_000)))
    turns: list[list[str]] = []
    while not turns or files.more:
        batch = ParsedBatch()
        files.read(batch, Sources({}), 0.0)
        turns.append([point.name for point in batch.points])

    assert all(len(set(names)) <= 2 for names in turns)
    assert sum(map(len, turns)) == 3 * 40_000
