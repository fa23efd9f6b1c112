"""The page of services: what runs, what it answers, and buttons for its owner."""

import pytest
from django.utils import timezone

from orchestrator.facts.events import ServiceFact
from orchestrator.facts.record import fact
from orchestrator.models import JobState, Service, ServiceReplica
from orchestrator.services import keys
from tests.dashboard.markup import html_of


@pytest.fixture
def asked(make_service, make_attempt, make_job, ada) -> Service:
    """A service that answers requests with one replica, while a second one starts."""
    traffic = {"requests_per_s": 12.4, "p50_ms": 8.1, "p99_ms": 31.0, "errors": 1, "refused": 3, "late": 0}
    service: Service = make_service(asked_at=timezone.now(), traffic=traffic, revision=2)
    keys.issue(service, "web site")
    for number, ready in ((1, 1), (2, 0)):
        attempt = make_attempt(make_job(ada, name=f"digits {number}"), state=JobState.RUNNING)
        ServiceReplica.objects.create(service=service, job=attempt.job, revision=number, ready_attempt=ready)
    return service


def test_page_shows_replicas_traffic_and_the_names_of_keys(reader, ada, asked):
    page = html_of(reader(ada).get("/services"))

    for words in (
        "digits",
        "1 of 2 ready",
        "/serve/digits/",
        "python serve.py",
        "web site",
        "12.4",
        "8.1",
        "31",
    ):
        assert words in page
    assert "being replaced" in page
    assert "POST /api/v1/services/digits/stop" in page


def test_page_says_what_is_asleep_and_why_one_has_failed(reader, ada, make_service):
    make_service("asleep")
    why = fact(ServiceFact.DIES_AGAIN, times=3, error="out of memory").as_json()
    make_service("broken", state="failed", why=why)

    page = html_of(reader(ada).get("/services"))

    assert "asleep: the next request starts it" in page
    assert "3 replicas in a row have failed" in page
    assert "POST /api/v1/services/broken/start" in page


def test_removing_a_service_says_what_is_lost_before_the_button(reader, ada, make_service):
    make_service("digits")

    page = html_of(reader(ada).get("/services"))

    assert page.index("Remove…") < page.index("keys stop working for good") < page.index(">Remove<span")


def test_others_see_no_service_of_ada(reader, bob, asked):
    page = html_of(reader(bob).get("/services"))

    assert "digits" not in page
    assert "There are no services" in page
