"""What the list of sessions says of each."""

from datetime import UTC, datetime, timedelta

import pytest

from berth.cli.session_commands import tell_activity
from berth.client import Session


def ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


@pytest.mark.parametrize(
    ("activity", "told"),
    [
        (None, ""),
        ({"sign": "kernel", "seen_at": ago(0), "idle": False, "stops_at": None}, "works"),
        ({"sign": "kernel", "seen_at": ago(20), "idle": True, "stops_at": None}, "idle for 20 min"),
        (
            {"sign": "device", "seen_at": ago(20), "idle": True, "stops_at": ago(-40.5)},
            "idle for 20 min, stops in 40 min",
        ),
    ],
)
def test_list_tells_what_a_session_does_and_when_it_is_stopped(activity, told):
    assert tell_activity(Session({"activity": activity})) == told


def test_server_that_tells_no_activity_is_listed_without():
    assert tell_activity(Session({})) == ""
