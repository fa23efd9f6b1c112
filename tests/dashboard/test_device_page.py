"""A device's page: its day as drawings, its processes, and its errors."""

import re
import time
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from orchestrator.models import DeviceSpan, JobState, Use
from orchestrator.spec.job_spec import GIB
from orchestrator.store.metrics.device_history import DeviceHistory
from tests.dashboard.markup import html_of


@pytest.fixture
def device(home, make_device, write_readings):
    """A device with an hour of readings, an hour without, and an hour again; eve's process is on it."""
    device = make_device(0)
    history = DeviceHistory(home.device_history)
    now = time.time()
    for ago_s in [*range(3 * 3600, 2 * 3600, -10), *range(3600, 0, -10)]:
        history.append(device.pk, now - ago_s, memory_used_bytes=20.0 * GIB, power_w=300.0)
    history.flush()
    eve = {
        "pid": 4000,
        "used_bytes": 20 * GIB,
        "user": "eve",
        "command": "python",
        "job": None,
        "age_s": 7260,
    }
    write_readings(device.pk, sim_0={"processes": [eve], "foreign_bytes": 20 * GIB})
    return device


def page_of(client, device) -> str:
    return html_of(client.get(reverse("device", args=[device.pk])))


def test_stored_readings_of_a_day_are_drawn_with_a_gap_where_nothing_was_read(reader, ada, device):
    page = page_of(reader(ada), device)

    memory = re.search(r"<figcaption>\s*<span>Memory in use.*?</figure>", page, re.DOTALL)
    assert memory is not None
    assert memory[0].count("<polyline") == 2
    assert "<b>20 GiB</b>" in memory[0]
    assert "highest 20 GiB" in memory[0]
    assert "<span>Power <b>300 W</b></span>" in page
    assert "Temperature" not in page[page.index("Last 24 hours") :]  # nothing was read of it


def test_a_foreign_process_has_pid_program_and_age_on_tile_and_page(reader, ada, device):
    client = reader(ada)

    assert "eve (python, pid 4000, 2 h 1 min)" in html_of(client.get(reverse("overview")))
    page = page_of(client, device)
    assert re.search(r"4000</th>.*eve.*python.*20\.0 GiB.*2 h 1 min.*external", page, re.DOTALL)
    assert "mailto:" not in page


def test_its_owner_can_be_written_to_where_they_are_known(reader, ada, bob, device):
    bob.username, bob.email = "eve", "eve@lab.example"
    bob.save()

    page = page_of(reader(ada), device)

    assert "mailto:eve%40lab.example?subject=Your%20process%204000" in page


def test_jobs_of_the_day_are_a_strip_and_errors_are_listed(reader, ada, device, make_job, make_attempt):
    make_attempt(make_job(ada, name="tiny-gpt"), state=JobState.RUNNING, devices=[device])
    now = timezone.now()
    DeviceSpan.objects.create(
        device=device,
        use=Use.FAILED,
        started_at=now - timedelta(hours=5),
        ended_at=now - timedelta(hours=4),
        seen_at=now,
    )

    page = page_of(reader(ada), device)

    assert re.search(r'class="day-held".*tiny-gpt', page, re.DOTALL)
    assert "Out of order for 1 h." in page
    assert 'class="day-trouble" style="left:79.' in page


def test_a_device_without_readings_says_so(reader, ada, make_device):
    page = page_of(reader(ada), make_device(0))

    assert "Nothing was read yet." in page
    assert "None in 24 hours." in page
    assert "None are on it now." in page
