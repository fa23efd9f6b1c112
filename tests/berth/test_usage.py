"""The table of `berth usage`."""

import pytest

from berth.cli.usage import show_usage
from berth.client import Usage

ROW = {
    "key": "ada",
    "gpu_hours": 12.0,
    "wasted_gpu_hours": 0.0,
    "failed_gpu_hours": 0.0,
    "idle_gpu_hours": 0.0,
    "jobs_started": 3,
    "mean_queue_s": 60.0,
    "longest_queue_s": 90.0,
}


@pytest.mark.parametrize(
    ("measured", "shown"),
    [({"energy_kwh": 3.25}, True), ({"energy_kwh": 0.0}, False), ({}, False)],
    ids=["measured", "not-measured", "older-server"],
)
def test_usage_names_energy_where_devices_measured_it(measured, shown, capsys):
    show_usage(Usage({"by": "owner", "device_hours": 0.0, "uses": {}, "rows": [{**ROW, **measured}]}))

    out = capsys.readouterr().out
    assert ("energy" in out, "3.2 kWh" in out) == (shown, shown)
    assert "ada" in out
