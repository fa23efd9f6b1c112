"""The list behind the bell."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from orchestrator.models import JobEvent, JobState
from tests.dashboard.markup import html_of


@pytest.fixture
def tell(make_job):
    def tell(to: JobState = JobState.FAILED, *, actor: str = "supervisor", age_s: float = 5, **fields):
        job = make_job(**fields)
        at = timezone.now() - timedelta(seconds=age_s)
        JobEvent.objects.create(
            job=job,
            number=2,
            at=at,
            from_state="running",
            to_state=to,
            actor=actor,
            kind="told",
            data={"sentence": "It ran out."},
        )
        return job

    return tell


def test_what_happened_to_ones_own_jobs_is_listed_with_the_reason(reader, ada, tell):
    tell(name="unlucky")

    page = html_of(reader(ada).get(reverse("notices")))

    assert "unlucky" in page
    assert "failed: It ran out." in page


def test_warnings_about_a_run_that_goes_on_are_listed_and_other_remarks_are_not(reader, ada, tell):
    tell(JobState.RUNNING, actor="agent", name="silent-one")
    tell(JobState.RUNNING, actor="scheduler", name="changed-one")

    page = html_of(reader(ada).get(reverse("notices")))

    assert "look at it: It ran out." in page
    assert "changed-one" not in page


def test_what_one_did_oneself_and_what_is_others_is_left_out(reader, ada, bob, tell):
    tell(JobState.CANCELLED, actor="ada", name="own-doing")
    tell(owner=bob, name="of-bob")

    page = html_of(reader(ada).get(reverse("notices")))

    assert "own-doing" not in page
    assert "of-bob" not in page
    assert "No messages" in page


def test_the_bell_counts_until_the_list_was_opened(reader, ada, tell):
    tell()
    browser = reader(ada)

    assert '<span class="count">1<' in html_of(browser.get("/"))
    browser.get(reverse("notices"))
    assert '<span class="count">' not in html_of(browser.get("/"))


@pytest.mark.parametrize("seen", ["", "nan", "1e99", "yesterday", "-1"])
def test_b43_a_cookie_that_is_no_time_is_as_good_as_none(reader, ada, tell, seen):
    tell()
    browser = reader(ada)
    browser.cookies["berth_seen"] = seen

    assert '<span class="count">1<' in html_of(browser.get("/"))


def test_the_bell_reads_recent_events_and_not_all_of_a_person(reader, ada, tell):
    """With 100,000 jobs the walk over a person's jobs took 22 ms of every page."""
    tell()
    with CaptureQueriesContext(connection) as queries:
        html_of(reader(ada).get(reverse("notices")))

    [query] = [
        q["sql"] for q in queries if 'FROM "orchestrator_jobevent"' in q["sql"] and "COUNT" in q["sql"]
    ]
    assert '("orchestrator_job"."owner_id" + ' in query, query
