"""Sessions that are asleep: who wakes them, and when they end."""

from datetime import timedelta

import pytest
from django.utils import timezone
from django.utils.html import strip_tags

from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.models import Job, JobState, Pool
from orchestrator.sessions import sleeping


@pytest.fixture
def asleep(make_job, home) -> Job:
    job: Job = make_job(name="notebook", spec={"kind": "session", "command": ["serve"]})
    why = fact(Happened.SESSION_ASLEEP, idle_s=3600.0, pool=job.pool_id, kept_s=86400)
    lifecycle.pause(job, by="idle watch", why=why)
    job.refresh_from_db()
    return job


def test_owner_wakes_a_session_and_it_queues_again(ada, reader_of, asleep):
    assert sleeping.is_asleep(asleep)

    reader_of(ada).post("/change", {"do": f"POST /api/v1/sessions/{asleep.pk}/wake"})

    asleep.refresh_from_db()
    assert asleep.state == JobState.QUEUED


def test_others_wake_no_session(bob, reader_of, asleep):
    reader_of(bob).post("/change", {"do": f"POST /api/v1/sessions/{asleep.pk}/wake"})

    asleep.refresh_from_db()
    assert asleep.state == JobState.HELD


def test_session_that_its_owner_holds_is_not_asleep(ada, reader_of, make_job):
    held = make_job(spec={"kind": "session", "command": ["serve"]})
    lifecycle.hold(held, by="ada")
    held.refresh_from_db()

    page = reader_of(ada).post("/change", {"do": f"POST /api/v1/sessions/{held.pk}/wake"}, follow=True)

    held.refresh_from_db()
    assert held.state == JobState.HELD
    assert "This session is held; only one that is asleep can be woken." in page.content.decode()


def test_page_and_rest_tell_that_a_session_is_asleep_and_when_it_ends(ada, reader_of, asleep, make_pool):
    Pool.objects.update(session_end_after_s=2 * 86400)

    page = " ".join(strip_tags(reader_of(ada).get("/sessions").content.decode()).split())

    assert "Asleep: it did nothing and gave its devices back. Its files are there." in page
    assert "unless you wake it" in page
    assert "Wake notebook" in page
    told = reader_of(ada).get("/api/v1/sessions").json()["results"][0]
    assert told["asleep"] is True
    assert told["ends_at"] is not None


def test_session_that_slept_for_long_is_ended(asleep):
    Pool.objects.update(session_end_after_s=86400)
    now = timezone.now()

    sleeping.end_in_time(now + timedelta(hours=23))
    asleep.refresh_from_db()
    assert asleep.state == JobState.HELD

    sleeping.end_in_time(now + timedelta(hours=25))
    asleep.refresh_from_db()
    assert asleep.state == JobState.CANCELLED
    assert asleep.reason == "Was asleep for 1 d; pool default ends such sessions."


@pytest.mark.parametrize("lasts_s", [None, 0])
def test_pool_that_ends_no_session_keeps_it(asleep, lasts_s):
    Pool.objects.update(session_end_after_s=lasts_s)

    sleeping.end_in_time(timezone.now() + timedelta(days=1000))

    asleep.refresh_from_db()
    assert asleep.state == JobState.HELD
