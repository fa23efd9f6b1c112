"""TensorBoard event files: written by torch's and TensorBoard's own writers, read without them."""

import os
import random
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from orchestrator.agent.follow_events import EventFiles
from orchestrator.agent.telemetry.event_files import BrokenFile, find_files, read_records
from orchestrator.agent.telemetry.metric_lines import ParsedBatch
from orchestrator.store.layout import JobFolder


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path / "job")
    (folder.work / "runs").mkdir(parents=True)
    folder.output.mkdir()
    return folder


def write(path: Path, *events: Event) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()


def scalar(step: int, value: float, tag: str = "loss", at: float | None = None) -> Event:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return Event(wall_time=time.time() if at is None else at, step=step, summary=summary)


def read(job: JobFolder, offsets: dict[str, int] | None = None) -> tuple[ParsedBatch, EventFiles]:
    files, batch = EventFiles(job, time.time() - 3600, offsets), ParsedBatch()
    while files.read(batch, time.time()):
        pass
    return batch, files


def points(batch: ParsedBatch) -> list[tuple[str, int, float]]:
    return [(point.name, point.step, point.value) for point in batch.points]


def test_what_torchs_writer_writes_is_read(job: JobFolder) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(job.work / "runs" / "first")) as writer:
        for step in range(3):
            writer.add_scalar("loss", 1 / (step + 1), step)
        writer.add_histogram("weights", np.array([1.0, 2.0]), 2)
        writer.add_text("note", "hello", 2)
        writer.add_scalar("accuracy", 0.5, 2, new_style=True)

    batch, _ = read(job)

    assert points(batch) == [
        ("loss", 0, 1.0), ("loss", 1, 0.5), ("loss", 2, pytest.approx(1 / 3)), ("accuracy", 2, 0.5),
    ]  # fmt: skip
    assert batch.last_step == 2


def test_a_tensor_of_one_number_is_a_scalar(job: JobFolder) -> None:
    value = Summary.Value(tag="epoch_loss", tensor=make_tensor_proto(0.25))
    write(job.work / "a.tfevents.1", Event(wall_time=time.time(), step=7, summary=Summary(value=[value])))

    assert points(read(job)[0]) == [("epoch_loss", 7, 0.25)]


def test_a_folder_that_became_a_link_is_not_read(job: JobFolder, tmp_path: Path) -> None:
    folder = job.work / "runs/first"
    write(folder / "events.out.tfevents.1", scalar(1, 0.5))
    _, files = read(job)
    write(tmp_path / "others/events.out.tfevents.1", scalar(1, 0.5), scalar(2, 0.25))
    folder.rename(job.work / "moved")
    folder.symlink_to(tmp_path / "others")

    assert 0.25 not in [value for _, _, value in points(read(job, files.offsets)[0])]


def test_each_record_counts_once_and_half_of_one_waits(job: JobFolder) -> None:
    path = job.work / "events.out.tfevents.1"
    write(path, scalar(1, 2.0), scalar(2, 1.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    batch, files = read(job)
    assert points(batch) == [("loss", 1, 2.0)]
    path.write_bytes(whole)

    again, _ = read(job, files.offsets)

    assert points(again) == [("loss", 2, 1.0)]


def test_curves_in_folders_of_their_own_are_told_apart(job: JobFolder) -> None:
    write(job.work / "logs" / "events.out.tfevents.1", scalar(1, 1.0))
    write(job.work / "logs" / "val" / "events.out.tfevents.2", scalar(1, 2.0))
    write(job.work / "logs" / "Loss_both" / "events.out.tfevents.3", scalar(1, 3.0))

    assert points(read(job)[0]) == [("loss", 1, 1.0), ("Loss_both/loss", 1, 3.0), ("val/loss", 1, 2.0)]


def test_the_time_that_names_a_folder_of_hyperparameters_is_no_part_of_a_metrics_name(job: JobFolder) -> None:
    write(job.work / "logs" / "a.tfevents.1", scalar(1, 1.0, tag="Loss/train"))
    write(job.work / "logs" / "1795841151.711296" / "a.tfevents.2", scalar(0, 2.0, tag="hparam/loss"))

    assert points(read(job)[0]) == [("Loss/train", 1, 1.0), ("hparam/loss", 0, 2.0)]


def test_events_of_an_earlier_attempt_are_left_out(job: JobFolder) -> None:
    old = job.work / "old.tfevents.1"
    write(old, scalar(1, 1.0))
    os.utime(old, (time.time() - 7200,) * 2)
    write(job.work / "copied.tfevents.1", scalar(1, 1.0, at=time.time() - 7200), scalar(5, 3.0))

    assert points(read(job)[0]) == [("loss", 5, 3.0)]


def test_links_and_hidden_folders_are_left_alone(job: JobFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "x.tfevents.1"
    write(elsewhere, scalar(1, 1.0))
    (job.work / "l.tfevents.1").symlink_to(elsewhere)
    (job.work / "linked").symlink_to(tmp_path)
    write(job.work / ".venv" / "a.tfevents.1", scalar(1, 1.0))

    assert points(read(job)[0]) == []


@pytest.mark.code("B52")
@pytest.mark.parametrize("data", [b"x" * 100, struct.pack("<QI", 1 << 60, 0) + b"x" * 90])
def test_broken_event_file_is_given_up(job: JobFolder, data: bytes) -> None:
    (job.work / "bad.tfevents.1").write_bytes(data)

    batch, files = read(job)

    assert points(batch) == []
    assert files.offsets == {"work/bad.tfevents.1": -1}


def test_damaged_bytes_never_raise_anything_else(job: JobFolder) -> None:
    path = job.work / "a.tfevents.1"
    write(path, *[scalar(step, 1.0) for step in range(20)])
    whole = path.read_bytes()
    draw = random.Random(3)  # noqa: S311  # bytes to damage, not a secret
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(3):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data)
        read(job)


@pytest.mark.code("B47")
def test_nan_in_event_files_is_flagged(job: JobFolder) -> None:
    write(job.work / "a.tfevents.1", scalar(3, float("nan")))

    assert read(job)[0].first_nonfinite == ("loss", 3)


def test_a_search_ends_in_a_folder_of_very_many_files(job: JobFolder) -> None:
    many = job.work / "data"
    many.mkdir()
    for number in range(6000):
        (many / str(number)).touch()

    assert find_files([many, job.work], 0) == []


def test_a_row_of_records_can_be_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, scalar(1, 1.0), scalar(2, 2.0))
    data = path.read_bytes()

    counts = [len(list(read_records(data[:end]))) for end in range(len(data) + 1)]

    assert sorted(counts) == counts
    assert counts[-1] == 2
    with pytest.raises(BrokenFile):
        list(read_records(data[1:]))


def test_a_file_whose_name_is_no_text_is_left_out(job: JobFolder) -> None:
    """PostgreSQL stores no such name, so the attempt would never end."""
    write(job.work / "events\udce9.tfevents.1", scalar(1, 0.5))
    write(job.work / "events.tfevents.2", scalar(2, 0.5))

    assert list(read(job)[1].offsets) == ["work/events.tfevents.2"]
