"""The history of devices: spikes, gaps, missing values, days."""

import numpy as np
import pytest

from orchestrator.store.metrics.device_history import RECORD, DeviceHistory

NOON = 1_700_049_600.0  # 2023-11-15 12:00 UTC


@pytest.fixture
def history(tmp_path):
    return DeviceHistory(tmp_path)


def test_readings_come_back_in_buckets_with_their_extremes(history):
    for n in range(8):
        history.append("GPU-1", NOON + n * 0.5, utilization_percent=100.0 if n == 2 else 10.0, power_w=50.0)
    history.flush()

    found = history.read("GPU-1", NOON, NOON + 10)

    assert found.keys() == {"utilization_percent", "power_w"}
    assert found["utilization_percent"].as_json() == {
        "x": [NOON, NOON + 2], "y": [32.5, 10.0], "y_min": [10.0, 10.0], "y_max": [100.0, 10.0], "n": [1, 1],
        "bucket": 2.0, "total": 2, "nonfinite": [],
    }  # fmt: skip


def test_a_time_without_readings_is_a_gap(history):
    for at in [*range(0, 10, 2), *range(100, 110, 2)]:
        history.append("0", NOON + at, memory_used_bytes=1e9)
    history.flush()

    series = history.read("0", NOON, NOON + 200)["memory_used_bytes"].as_json()

    assert series["y"] == [1e9] * 5 + [None] + [1e9] * 5
    assert series["n"][5] == 0
    assert series["x"] == sorted(series["x"])


def test_a_day_is_reduced_to_the_points_asked_for(history):
    for n in range(3000):
        history.append("0", NOON + 2 * n, temperature_c=float(n == 1234))
    history.flush()

    series = history.read("0", NOON, NOON + 86_400, max_points=100)["temperature_c"]

    assert len(series.x) <= 100
    assert series.y_max.max() == 1.0


def test_midnight_does_not_interrupt(history, tmp_path):
    midnight = NOON + 43_200
    for n in range(-5, 5):
        history.append("0", midnight + 2 * n, power_w=1.0)
    history.flush()

    assert len(list(tmp_path.glob("*/*.rec"))) == 2
    assert len(history.read("0", midnight - 60, midnight + 60)["power_w"].x) == 10


def test_a_torn_record_does_not_shift_the_next(history, tmp_path):
    history.append("0", NOON, power_w=1.0)
    history.flush()
    (path,) = tmp_path.glob("*/*.rec")
    path.write_bytes(path.read_bytes() + b"torn")

    history.append("0", NOON + 2, power_w=2.0)
    history.flush()

    assert path.stat().st_size == 2 * RECORD.itemsize
    assert history.read("0", NOON, NOON + 9)["power_w"].y.tolist() == [1.0, 2.0]


def test_a_clock_set_back_keeps_the_order(history):
    for at in (10, 12, 4, 6):
        history.append("0", NOON + at, power_w=float(at))
    history.flush()

    assert history.read("0", NOON, NOON + 20)["power_w"].y.tolist() == [4.0, 6.0, 10.0, 12.0]


def test_device_ids_stay_inside_the_folder(history, tmp_path):
    for device_id in ("../../x", "GPU-1/2", "a b", "..", "MIG-GPU-1:3"):
        history.append(device_id, NOON, power_w=1.0)
    history.flush()

    folders = {path.parent.parent for path in tmp_path.rglob("*.rec")}
    assert folders == {tmp_path}
    assert np.isclose(history.read("..", NOON, NOON + 5)["power_w"].y[0], 1.0)


def test_old_days_go(history, tmp_path):
    history.append("0", NOON, power_w=1.0)
    history.append("0", NOON + 30 * 86_400, power_w=1.0)
    history.flush()

    assert history.drop_old(now=NOON + 30 * 86_400) == 1
    assert len(list(tmp_path.glob("*/*.rec"))) == 1


def test_an_unknown_device_has_no_history(history):
    assert history.read("nobody", NOON, NOON + 10) == {}


def test_a_device_without_history_has_no_records(tmp_path):
    assert list(DeviceHistory(tmp_path).records("gpu-0", 0.0, 1e9)) == []
