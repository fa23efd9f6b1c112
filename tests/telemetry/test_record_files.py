"""Files in which known trainers keep their training: what their first lines and rows tell."""

from pathlib import PurePosixPath

import pytest

from orchestrator.agent.telemetry.record_files import open_record_file


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
    "line", [b"1,2", b"x,y,z", b'{"step": 1', b"\xff\xfe", b"", b"9" * 100_000, b'"' * 100, b"1e999,0.5,0.5"]
)
def test_no_line_stops_the_reader(line):
    file = open_record_file(PurePosixPath("log.csv"), b"epoch,step,loss")

    assert file is not None
    assert list(file.read([line])) == []
    assert [row.step for row in file.read([b"1,7,0.5"])] == [7]
