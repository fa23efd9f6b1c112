"""Files in which known trainers keep their training: what their first lines and rows tell."""

import math
import os
import time
from contextlib import contextmanager
from pathlib import PurePosixPath

import pytest

from orchestrator.agent.telemetry.record_files import MOST_ENTRIES, find_files, open_record_file


@pytest.mark.parametrize(
    ("name", "lines", "unit", "rows"),
    [
        # Keras' CSVLogger
        ("training.log.csv", ["epoch,accuracy,loss", "0,0.5,1.0"], "epoch", [(0, {"accuracy": 0.5, "loss": 1.0})]),
        # timm
        ("summary.csv", ["epoch,train_loss,eval_loss,eval_top1,lr", "0,2.3,2.2,10.5,0.05"], "epoch", [(0, {"train_loss": 2.3, "eval_loss": 2.2, "eval_top1": 10.5, "lr": 0.05})]),
        # Lightning's CSVLogger, whose rows have the values of one moment each
        ("metrics.csv", ["epoch,step,train_loss,val_loss", "0,49,0.5,", "0,49,,0.6"], "step", [(49, {"train_loss": 0.5}), (49, {"val_loss": 0.6})]),
        # Stable-Baselines3
        ("progress.csv", ["rollout/ep_rew_mean,time/total_timesteps,train/loss", "22.5,2048,"], "step", [(2048, {"rollout/ep_rew_mean": 22.5})]),
        # Ultralytics
        ("results.csv", ["                  epoch,         train/box_loss,   metrics/mAP50(B)", "                      1,                 1.25,             0.75"], "epoch", [(1, {"train/box_loss": 1.25, "metrics/mAP50(B)": 0.75})]),
        # Detectron2
        ("metrics.json", ['{"data_time": 0.1, "iteration": 19, "total_loss": 1.5}'], "step", [(19, {"data_time": 0.1, "total_loss": 1.5})]),
        # MAE
        ("log.txt", ['{"train_lr": 0.1, "train_loss": 0.5, "epoch": 3}'], "epoch", [(3, {"train_lr": 0.1, "train_loss": 0.5})]),
        ("log.tsv", ["step\tloss", "5\ttensor(0.5)"], "step", [(5, {"loss": 0.5})]),
        ("val_log.csv", ["step;loss", "5;0.5"], "step", [(5, {"val_loss": 0.5})]),
    ],
)  # fmt: skip
def test_the_file_of_a_trainer_gives_its_rows(name, lines, unit, rows):
    file = open_record_file(PurePosixPath(name), lines[0].encode())

    assert file is not None
    assert file.unit == unit
    told = lines[1:] if file.header else lines
    assert [tuple(row) for row in file.read([line.encode() for line in told])] == rows


@pytest.mark.parametrize(
    "line", [b"step,loss\r 10%, 1 of 9", b"\xff\xfe", b"", b'"' * 100, b"\0,\0", b"," * 60_000]
)
def test_a_first_line_of_another_kind_does_not_stop_the_search(line):
    assert open_record_file(PurePosixPath("train.log"), line) is None


def test_first_lines_of_too_many_columns_cost_little():
    line = ",".join(f"column{number}" for number in range(6000)).encode()
    before_s = time.process_time()

    assert not any(open_record_file(PurePosixPath("data.csv"), line) for _ in range(100))
    assert time.process_time() - before_s < 1


@pytest.mark.parametrize(
    "line", [b"1,2", b"x,y,z", b'{"step": 1', b"\xff\xfe", b"", b"9" * 100_000, b'"' * 100, b"1e999,0.5,0.5"]
)
def test_no_line_stops_the_reader(line):
    file = open_record_file(PurePosixPath("log.csv"), b"epoch,step,loss")

    assert file is not None
    assert list(file.read([line])) == []
    assert [row.step for row in file.read([b"1,7,0.5"])] == [7]


@pytest.mark.parametrize(
    ("name", "lines", "rows"),
    [
        ("log.csv", ["epoch;loss;val_acc", "1;0,52;0,3"], [(1, {"loss": 0.52, "val_acc": 0.3})]),
        ("log.csv", ["epoch,loss", '1,"0,52"', '2,"1,000,5"'], [(1, {"loss": 0.52})]),
        ("log.csv", ["epoch;loss;acc", "1;1,234.5;0.5"], [(1, {"acc": 0.5})]),
        # Validations come later than the steps that they are of.
        ("log.jsonl", ['{"step": 100, "loss": 1}', '{"step": 200, "loss": 2}', '{"step": 100, "eval_loss": 3}', '{"step": 300, "loss": 4}'], [(100, {"loss": 1}), (200, {"loss": 2}), (100, {"eval_loss": 3}), (300, {"loss": 4})]),
        # A script that appends to its file and counts from its beginning.
        ("log.csv", ["step,loss", "5,1.0", "10,0.9", "step,loss", "5,0.8", "10,0.7"], [(5, {"loss": 1.0}), (10, {"loss": 0.9}), (15, {"loss": 0.8}), (20, {"loss": 0.7})]),
        ("log.csv", ["step,loss", "5,1.0", "10,0.9", "step,loss", "15,0.8"], [(5, {"loss": 1.0}), (10, {"loss": 0.9}), (15, {"loss": 0.8})]),
        # Not measured yet; then a training that broke
        ("log.csv", ["epoch,loss,val_loss", "1,1.0,0.9", "2,0.9,nan"], [(1, {"loss": 1.0, "val_loss": 0.9}), (2, {"loss": 0.9})]),
        ("log.csv", ["epoch,loss,val_loss", "1,1.0,nan", "2,0.9,0.8", "3,0.8,inf"], [(1, {"loss": 1.0}), (2, {"loss": 0.9, "val_loss": 0.8}), (3, {"loss": 0.8, "val_loss": float("inf")})]),
        # Unix seconds
        ("log.csv", ["epoch,loss", "1764352800,1.0", "2,0.5"], [(2, {"loss": 0.5})]),
        ("log.jsonl", ['\ufeff{"step": 1, "loss": 1.0}', '{"step": 2, "loss": 0.5}'], [(1, {"loss": 1.0}), (2, {"loss": 0.5})]),
        ("log.csv", ["epoch,phase,loss", "1,train,1.0", "1,val,1.1", "2,train,0.9", "2,val,1.0"], [(1, {"loss": 1.0}), (1, {"val_loss": 1.1}), (2, {"loss": 0.9}), (2, {"val_loss": 1.0})]),
        ("log.jsonl", ['{"split": "train", "step": 5, "loss": 1.0}', '{"split": "val", "step": 5, "loss": 1.1}'], [(5, {"loss": 1.0}), (5, {"val_loss": 1.1})]),
    ],
)  # fmt: skip
def test_rows_are_read_as_their_scripts_mean_them(name, lines, rows):
    file = open_record_file(PurePosixPath(name), lines[0].encode())

    assert file is not None
    told = lines[1:] if file.header else lines
    assert [tuple(row) for row in file.read([line.encode() for line in told])] == rows


def test_names_of_columns_are_worked_out_once():
    columns = ",".join(f"{'é' * 90}{number}" for number in range(150))
    file = open_record_file(PurePosixPath("val_log.csv"), f"step,loss,{columns}".encode())
    assert file is not None
    rows = [f"{step},1{',1' * 150}".encode() for step in range(800)]
    before_s = time.process_time()

    assert sum(len(row.values) for row in file.read(rows)) == 800 * 151
    assert time.process_time() - before_s < 1  # 4.7 s where each cell looks at the name of its column


def test_a_name_of_thousands_of_letters_names_no_metric():
    file = open_record_file(PurePosixPath("log.jsonl"), b'{"step": 1, "loss": 1}')
    assert file is not None
    line = f'{{"step": 2, "loss": 0.5, "{"x" * 5000}": 1}}'

    assert list(file.read([line.encode()])) == [(2, {"loss": 0.5})]


def test_a_loss_that_is_no_number_after_some_that_were_is_told():
    file = open_record_file(PurePosixPath("log.csv"), b"epoch,loss")

    assert file is not None
    rows = list(file.read([b"1,0.5", b"2,nan"]))
    assert [row.step for row in rows] == [1, 2]
    assert math.isnan(rows[1].values["loss"])


def test_a_search_looks_at_the_nearest_files_and_stops_in_a_large_folder(tmp_path, monkeypatch):
    seen = []
    scandir = os.scandir

    def note(entry):
        seen.append(entry.name)
        return entry

    @contextmanager
    def noting(folder):
        with scandir(folder) as entries:
            yield map(note, entries)

    for index in range(MOST_ENTRIES + 100):
        os.mknod(tmp_path / f"{index}.csv")
    other = tmp_path / "other"
    (other / "a/b").mkdir(parents=True)
    for name in ("a/b/log.csv", "a/log.csv", "log.csv", "log.png", ".git"):
        (other / name).touch()
    (other / "link.csv").symlink_to(other / "log.csv")

    monkeypatch.setattr(os, "scandir", noting)
    found = [path.relative_to(tmp_path).as_posix() for path in find_files([other, tmp_path])]

    assert found[:3] == ["other/log.csv", "other/a/log.csv", "other/a/b/log.csv"]
    assert len(seen) <= MOST_ENTRIES + 10
