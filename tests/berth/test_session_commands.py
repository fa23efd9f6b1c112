"""What the list of sessions says of each."""

from datetime import UTC, datetime, timedelta

import pytest

from berth.cli.session_commands import tell_activity
from berth.client import Session


def ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


@pytest.mark.parametrize(
    ("seen_min", "stops_min", "told"),
    [
        (None, None, "works"),
        (20, None, "idle for 20 min"),
        (20, -40.5, "idle for 20 min, sleeps in 40 min"),
    ],
)
def test_list_tells_what_a_session_does_and_when_it_is_stopped(seen_min, stops_min, told):
    activity = {
        "sign": "kernel",
        "seen_at": ago(seen_min or 0),
        "idle": seen_min is not None,
        "stops_at": None if stops_min is None else ago(stops_min),
    }

    assert tell_activity(Session({"activity": activity})) == told


def test_list_tells_that_a_session_is_asleep_and_when_it_ends():
    asleep = {"activity": None, "asleep": True}

    assert tell_activity(Session({**asleep, "ends_at": ago(-60.5)})) == "asleep, ends in 1 h"
    assert tell_activity(Session({**asleep, "ends_at": None})) == "asleep"


def test_session_that_does_not_run_yet_does_nothing():
    assert tell_activity(Session({"activity": None})) == ""


def test_server_that_tells_no_activity_is_listed_without():
    assert tell_activity(Session({})) == ""
