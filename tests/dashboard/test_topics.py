"""What a reader gets of each topic, by what it has seen: no socket and no clock in here."""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from dashboard.live.topics import (
    LOG_BACKLOG_BYTES,
    DevicesSource,
    ListSource,
    LogSource,
    PointsSource,
    StateSource,
)
from orchestrator.live.readings import NowReadings
from orchestrator.models import Device
from orchestrator.store.metrics.device_history import DeviceHistory
from orchestrator.store.metrics.writer import MetricWriter, Point


async def frames_of(source, after: int | None) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (await source.batch(after)).frames]


def readings(seq: int, **fields: object) -> NowReadings:
    entry: Any = {
        "id": "gpu-0",
        "used_bytes": 100,
        "total_bytes": 1000,
        "holders": [],
        "processes": [],
        **fields,
    }
    return NowReadings(seq, 1000.0 + seq, "s", None, False, {}, [entry])


GPU = Device(id="gpu-0", index=0, kind="gpu", name="H200", memory_bytes=1000)


async def test_devices_are_whole_at_first_and_then_ticks():
    source = DevicesSource()
    source.update(readings(1), [GPU])
    first = (await frames_of(source, None))[0]
    source.update(readings(2, utilization_percent=None), [GPU])

    [tick] = await frames_of(source, first["seq"] + 0)

    assert first["type"] == "snapshot"
    assert first["data"]["devices"][0]["id"] == "gpu-0"
    assert tick["seq"] > first["seq"]
    assert await frames_of(source, tick["seq"]) == []


async def test_sparklines_of_a_new_process_begin_with_what_is_stored(home):
    history = DeviceHistory(home.device_history)
    for ago_s in range(20, 0, -2):
        history.append("gpu-0", 1001.0 - ago_s, utilization_percent=float(ago_s))
    history.flush()
    source = DevicesSource()

    source.update(readings(1, utilization_percent=50.0), [GPU])

    recent = (await frames_of(source, None))[0]["data"]["recent"]["gpu-0"]
    assert recent[:4] == [20.0] * 4
    assert recent[-1] == 50.0
    assert len(recent) <= 45


async def test_devices_are_whole_again_when_more_than_numbers_changed():
    source = DevicesSource()
    source.update(readings(1), [GPU])
    seen = source.seq
    source.update(readings(2), [GPU])
    assert (await frames_of(source, seen))[0]["type"] == "tick"

    source.update(
        readings(3), [Device(id="gpu-0", index=0, kind="gpu", memory_bytes=1000, admin_state="draining")]
    )

    assert (await frames_of(source, seen + 1))[0]["type"] == "snapshot"


async def test_a_jobs_command_line_does_not_leave_with_the_readings():
    process = {
        "pid": 1,
        "used_bytes": 5,
        "user": "ada",
        "command": "python train.py --key hunter2",
        "job": "j",
    }
    stranger = {
        "pid": 2,
        "used_bytes": 5,
        "user": "carl",
        "command": "/usr/bin/python --pin 1234",
        "job": None,
    }
    source = DevicesSource()
    source.update(readings(1, processes=[process, stranger]), [GPU])

    [text] = (await source.batch(None)).frames

    assert "hunter2" not in text
    assert "1234" not in text
    assert '"command":"python"' in text


async def test_all_readers_at_the_same_place_share_one_encoded_frame():
    source = DevicesSource()
    source.update(readings(1), [GPU])

    assert await source.batch(None) is await source.batch(None)


async def test_a_list_sends_only_what_changed_and_says_what_is_gone():
    source = ListSource("jobs")
    source.update([{"id": "a", "n": 1}, {"id": "b", "n": 1}])
    [first] = await frames_of(source, None)
    source.update([{"id": "a", "n": 2}, {"id": "b", "n": 1}])
    [second] = await frames_of(source, first["seq"])
    source.update([{"id": "a", "n": 2}])
    [third] = await frames_of(source, second["seq"])

    assert first["data"] == {"jobs": [{"id": "a", "n": 1}, {"id": "b", "n": 1}], "order": ["a", "b"]}
    assert second["data"] == {"jobs": [{"id": "a", "n": 2}]}
    assert third["data"] == {"jobs": [], "gone": ["b"], "order": ["a"]}


async def test_a_reader_that_slept_through_many_changes_gets_the_newest_state_once():
    source = ListSource("jobs")
    source.update([{"id": "a", "n": 0}])
    seen = source.seq
    for number in range(1, 500):
        source.update([{"id": "a", "n": number}])

    assert [frame["data"]["jobs"] for frame in await frames_of(source, seen)] == [[{"id": "a", "n": 499}]]


async def test_removals_that_are_no_longer_known_are_made_up_by_the_whole_list():
    source = ListSource("jobs")
    source.update([{"id": str(number)} for number in range(600)])
    seen = source.seq
    for kept in range(599, 0, -1):
        source.update([{"id": str(number)} for number in range(kept)])

    [frame] = await frames_of(source, seen)

    assert frame["type"] == "snapshot"
    assert frame["data"]["order"] == ["0"]


async def test_an_unchanged_state_is_no_change():
    source = StateSource("job:x")

    assert source.update({"state": "running"})
    assert not source.update({"state": "running"})
    assert source.update({"state": "stopping"})
    assert (await frames_of(source, 1))[0] == {
        "topic": "job:x",
        "seq": 2,
        "type": "state",
        "data": {"state": "stopping"},
    }


@pytest.fixture
def points(tmp_path):
    """A job's metrics of 100 steps, and a source at their end."""
    writer = MetricWriter(tmp_path, 1, 1000.0, None)
    for step in range(100):
        writer.append([Point("loss", step, 1000.0 + step, float("nan") if step == 50 else step / 10)])
    seq = writer.flush()["seq"]
    writer.close()
    source = PointsSource("metrics:x", tmp_path)
    source.update(seq)
    return source


async def test_points_resume_exactly_by_seq(points):
    [all_at_once] = await frames_of(points, 0)
    [rest] = await frames_of(points, 97)

    assert all_at_once["seq"] == rest["seq"] == 100
    assert len(all_at_once["data"]["loss"]["x"]) == 100
    assert rest["data"]["loss"]["x"] == [97, 98, 99]
    assert await frames_of(points, 100) == []


async def test_b47_nan_is_null_in_a_frame_that_stays_json(points):
    [frame] = await frames_of(points, 50)

    assert frame["data"]["loss"]["y"][0] is None
    assert frame["data"]["loss"]["x"][0] == 50


async def test_a_seq_beyond_what_is_stored_is_a_gap(points):
    assert await frames_of(points, 5000) == [{"topic": "metrics:x", "type": "gap", "from": 100}]


async def test_many_points_come_as_buckets_that_keep_the_spike(tmp_path):
    writer = MetricWriter(tmp_path, 1, 1000.0, None)
    writer.append(
        [Point("loss", step, 1000.0 + step, 99.0 if step == 4321 else 1.0) for step in range(10_000)]
    )
    seq = writer.flush()["seq"]
    writer.close()
    source = PointsSource("metrics:x", tmp_path)
    source.update(seq)

    [frame] = await frames_of(source, 0)

    assert frame["reduced"] is True
    assert len(frame["data"]["loss"]["x"]) <= 2000
    assert max(frame["data"]["loss"]["y_max"]) == 99.0


@pytest.fixture
def long_series(tmp_path):
    """A source at the end of 100,000 points, and what stores ``more`` of them."""
    writer = MetricWriter(tmp_path, 1, 1000.0, None)
    source = PointsSource("metrics:x", tmp_path)

    def store(first: int, count: int) -> None:
        writer.append([Point("loss", step, 1000.0 + step, 1.0) for step in range(first, first + count)])
        source.update(writer.flush()["seq"])

    store(0, 100_000)
    yield source, store
    writer.close()


async def test_many_that_come_at_once_take_the_memory_of_one(long_series):
    source, store = long_series
    tracemalloc.start()
    try:
        await source.batch(None)
        _, one = tracemalloc.get_traced_memory()
        store(100_000, 3_000)
        tracemalloc.reset_peak()
        batches = await asyncio.gather(*(source.batch(None) for _ in range(50)))
        _, many = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert {batch.seq for batch in batches} == {103_000}
    assert many < 1.5 * one


async def test_who_comes_a_little_later_gets_what_was_read_and_then_the_rest(long_series):
    source, store = long_series
    first = await source.batch(None)
    store(100_000, 5)

    second = await source.batch(None)
    [rest] = await frames_of(source, second.seq)

    assert (second.frames, second.more) == (first.frames, True)
    assert rest["data"]["loss"]["x"] == [100_000, 100_001, 100_002, 100_003, 100_004]


async def test_a_reader_that_leaves_takes_nothing_from_the_others(long_series):
    source, _ = long_series
    leaving = asyncio.create_task(source.batch(None))
    staying = asyncio.create_task(source.batch(None))
    await asyncio.sleep(0)
    leaving.cancel()

    assert (await staying).seq == 100_000


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "rank0.log"
    source = LogSource("log:x:1:0", path)

    def write(data: bytes) -> LogSource:
        with path.open("ab") as file:
            file.write(data)
        source.update(path.stat().st_size)
        return source

    return write


async def read_all(source: LogSource, after: int | None) -> str:
    text, more = "", True
    while more:
        batch = await source.batch(after)
        for frame in map(json.loads, batch.frames):
            assert frame["type"] == "chunk"
            text += frame["data"]["text"]
        after, more = batch.seq, batch.more
    return text


async def test_a_log_resumes_by_byte_offset(log):
    source = log(b"one\ntwo\n")
    assert (await frames_of(source, 4))[0]["data"] == {"offset": 4, "text": "two\n", "lines": 1}

    log("drei €\n".encode())

    [frame] = await frames_of(source, 8)
    assert frame["data"]["text"] == "drei €\n"
    assert frame["seq"] == 8 + len("drei €\n".encode())


async def test_a_long_log_comes_in_frames_of_64_kib_and_without_a_hole(log):
    lines = "".join(f"line {number} of many\n" for number in range(9_000))
    source = log(lines.encode())

    assert len(lines) < LOG_BACKLOG_BYTES
    assert len((await source.batch(0)).frames[0]) < 80_000
    assert await read_all(source, 0) == lines


async def test_who_is_far_behind_is_taken_to_the_end_and_told_what_was_skipped(log):
    lines = "".join(f"line {number} of many\n" for number in range(50_000))
    source = log(lines.encode())

    skipped, chunk = await frames_of(source, 10)

    assert skipped["type"] == "skipped"
    assert skipped["data"]["from"] == 10
    assert skipped["data"]["to"] == chunk["data"]["offset"]
    assert lines.encode()[chunk["data"]["offset"] :].startswith(chunk["data"]["text"].encode())
    assert chunk["seq"] == len(lines)


async def test_an_offset_beyond_the_end_is_a_gap(log):
    source = log(b"one\n")

    assert await frames_of(source, 99) == [{"topic": "log:x:1:0", "type": "gap", "from": 4}]


async def test_a_progress_bar_replaces_the_line_that_is_still_open(log):
    source = log(b"start\n\r 10%")
    log(b"\r 20%")

    [frame] = await frames_of(source, 10)

    assert frame["data"] == {"offset": 10, "text": " 20%", "lines": 0, "over": True}
    log(b"\ndone\n")
    assert "over" not in (await frames_of(source, 15))[0]["data"]


@pytest.mark.parametrize("written", [16 << 10, 64 << 10])
async def test_a_chunk_of_a_line_that_is_split_does_not_say_how_many_lines_it_is(log, written):
    source = log(b"start\n" + b"x" * written + b"y")

    *_, frame = await frames_of(source, written)

    assert frame["data"]["lines"] is None
    log(b"z\nnext\nand more\n")
    assert (await frames_of(source, written + 7))[-1]["data"]["lines"] is None
    assert (await frames_of(source, written + 9))[-1]["data"]["lines"] == 2


async def test_a_log_replaced_by_a_link_is_not_followed(tmp_path):
    (tmp_path / "rank0.log").symlink_to("/etc/passwd")
    source = LogSource("log:x:1:0", tmp_path / "rank0.log")
    source.update(10)

    assert (await source.batch(0)).frames == ()
