"""The timeline as the pages draw it."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.parts.lanes import ROW_PX, show_lanes
from orchestrator.models import Device, DeviceSpan, JobState, Lease, Use
from orchestrator.spec.job_spec import GIB
from orchestrator.store.metrics.device_history import DeviceHistory


@pytest.fixture
def now():
    return timezone.now()


@pytest.fixture
def lane(now):
    """The parts of the first device's lane."""

    def read() -> list[dict[str, Any]]:
        Device.objects.update(added_at=now - timedelta(days=30))
        parts: Any = show_lanes("2 h", now)["lanes"][0]["parts"]
        return list(parts)

    return read


def test_idle_times_stand_between_jobs_and_say_how_long_they_were(home, now, lane, make_attempt):
    make_attempt(state=JobState.RUNNING)
    Lease.objects.update(started_at=now - timedelta(minutes=60))

    idle, job = lane()[:2]

    assert (idle["kind"], idle["left"], idle["width"], idle["said"]) == ("idle", 0.0, 25.0, "idle 1 h")
    assert (job["kind"], job["left"], job["width"], job["is_named"]) == ("job", 25.0, 25.0, True)


@pytest.mark.parametrize(("minutes", "tag"), [(60, "a"), (5, "span")])
def test_a_bar_too_narrow_for_a_finger_is_no_link(home, now, ada, reader, make_attempt, minutes, tag):
    make_attempt(owner=ada, state=JobState.RUNNING)
    Lease.objects.update(started_at=now - timedelta(minutes=minutes))

    html = reader(ada).get("/").text

    found = re.search(r'class="lane-bar colour-[^>]*>\s*<(a|span)', html)
    assert found is not None
    assert found[1] == tag


def test_the_memory_view_shows_how_full_a_device_was_and_hides_no_spike(home, now, reader, ada, make_device):
    device = make_device(0, memory_bytes=100 * GIB)
    history = DeviceHistory(home.device_history)
    for minute in range(90, 0, -1):
        used = 95 * GIB if minute == 45 else 5 * GIB if minute > 30 else 52 * GIB
        history.append(device.pk, (now - timedelta(minutes=minute)).timestamp(), memory_used_bytes=used)
    history.flush()

    parts: Any = show_lanes("2 h, memory", now)["lanes"][0]["parts"]

    assert [part["level"] for part in parts] == [0, 9, 0, 5]
    assert parts[0]["left"] == pytest.approx(12.5, abs=1)
    assert re.fullmatch(r"from 4[56] min ago: 95\.0 GiB of 100\.0 GiB", parts[1]["said"])
    assert parts[-1]["left"] + parts[-1]["width"] == pytest.approx(50, abs=1), "the future is empty"
    page = reader(ada).get("/", {"line": "2 h, memory"}).text
    assert 'class="lane-memory heat-9"' in page
    assert "?line=12%20h%2C%20memory" in page


def test_jobs_that_share_a_device_stand_below_each_other(home, now, make_attempt, make_device):
    device = make_device(0)
    for name in ("one", "two"):
        make_attempt(state=JobState.RUNNING, name=name, devices=[device], memory_bytes=1)

    lane: Any = show_lanes("2 h", now + timedelta(minutes=30))["lanes"][0]

    assert [part["top_px"] for part in lane["parts"] if part["kind"] == "job" and not part["planned"]] == [
        0,
        ROW_PX,
    ]
    assert lane["height_px"] == 2 * ROW_PX


def test_a_device_was_not_idle_before_anybody_knew_it(home, now, make_device):
    make_device(0)

    assert show_lanes("2 h", now)["lanes"][0]["parts"] == []


def test_what_others_had_is_neither_idle_nor_a_jobs(home, now, lane, make_device):
    DeviceSpan.objects.create(
        device=make_device(0), use=Use.FOREIGN, owner="carl", started_at=now - timedelta(hours=1), seen_at=now
    )

    kinds = [(part["kind"], part.get("who", "")) for part in lane()]

    assert kinds == [("idle", ""), ("other", "carl")]


def test_attempts_that_follow_each_other_are_one_bar(home, now, lane, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    first = attempt.leases.get()
    Lease.objects.update(started_at=now - timedelta(minutes=30))
    Lease.objects.create(
        attempt=attempt, device=first.device, rank=0, started_at=now - timedelta(minutes=60),
        ended_at=now - timedelta(minutes=30, seconds=20),
    )  # fmt: skip

    bars = [part for part in lane() if part["kind"] == "job" and not part["planned"]]

    assert [(bar["left"], bar["width"]) for bar in bars] == [(25.0, 25.0)]


@pytest.mark.parametrize("chosen", ["2 h", "12 h", "24 h", "7 d", "", "1 y", "x" * 2_000_000])
def test_ticks_are_few_and_in_place_for_every_range(home, now, make_device, chosen):
    make_device(0)

    shown = show_lanes(chosen, now)

    assert 2 <= len(shown["ticks"]) <= 10
    assert all(0 <= tick["left"] <= 100 for tick in shown["ticks"])
    assert sum(each["chosen"] for each in shown["ranges"]) == 1
