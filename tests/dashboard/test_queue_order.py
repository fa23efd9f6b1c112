"""The order of one's own waiting jobs on the Queue."""

import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import expect

from dashboard.parts.rows import first_in_order, in_order
from orchestrator.models import Job, JobState
from tests.dashboard.markup import html_of


@pytest.fixture
def waiting(make_job, bob):
    """a1, b of bob's, a2, as a pass would have put them."""
    return [
        make_job(name=name, owner=bob if name == "b" else None, wait_ahead=place)
        for place, name in enumerate(("a1", "b", "a2"))
    ]


def line() -> list[str]:
    return [job.name for job in in_order(Job.objects.queued())]


def test_without_javascript_a_button_moves_the_job(reader, ada, waiting):
    client = reader(ada)
    page = html_of(client.get(reverse("queue")))
    assert page.count("data-move") == 2  # not bob's
    found = re.search(r'action="(\S+/move)".*?name="behind" value="(\S+)"', page)
    assert found

    answer = client.post(found[1], {"behind": found[2]})

    assert answer["Location"] == reverse("queue")
    assert line() == ["a2", "b", "a1"]


def test_jobs_that_may_not_start_yet_come_after_those_that_wait_for_devices(make_job):
    soon = timezone.now() + timedelta(hours=14)
    make_job(name="tomorrow", wait_ahead=0, wait_code="not_before", not_before=soon)
    make_job(name="after-bert", wait_ahead=1, wait_code="depends")
    make_job(name="bert", wait_ahead=1, wait_code="devices")
    make_job(name="paused", state=JobState.HELD)
    make_job(name="big", wait_ahead=0, wait_code="devices")
    make_job(name="new", wait_ahead=2)

    names = [job.name for job in in_order(Job.objects.all())]

    assert names == ["big", "bert", "new", "tomorrow", "after-bert", "paused"]
    assert [job.name for job in first_in_order(Job.objects.all(), 10)] == names


def test_the_column_names_the_time_that_the_sentence_names(reader, ada, make_job):
    make_job(wait_code="not_before", not_before=timezone.now() + timedelta(hours=14))

    page = html_of(reader(ada).get(reverse("queue")))

    assert ">in 14 h at the earliest</td>" in page
    assert ">Starts in 14 h at the earliest, as asked.</span>" in page


def test_jobs_in_line_and_jobs_that_may_not_start_yet_do_not_change_places(reader, ada, make_job):
    make_job(name="a", wait_code="devices")
    make_job(name="b", wait_code="depends", wait_ahead=1)

    page = html_of(reader(ada).get(reverse("queue")))

    assert page.count('class="number place"') == 2
    assert "data-move" not in page


def test_anothers_job_is_not_moved_and_it_is_said(reader, ada, waiting):
    address = reverse("queue-move", args=[waiting[0].pk])
    page = html_of(reader(ada).post(address, {"before": str(waiting[1].pk)}, follow=True))
    assert "or you may not see it" in page
    assert reader(ada).post(reverse("queue-move", args=[waiting[1].pk])).status_code == 404
    assert line() == ["a1", "b", "a2"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")
def test_alt_up_moves_the_row_at_once_and_back_when_that_fails(server, open_page, ada, waiting):
    page = open_page(ada, "/account")
    lost: list[bool] = []
    page.route("**/move", lambda route: route.abort("connectionrefused") if lost else route.continue_())
    page.goto(server.url + "/queue")  # a page that is open may still ask past a new route
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    names = page.locator("tr[data-group] th a")
    expect(names).to_have_text(["a1", "a2"])

    names.nth(1).focus()
    page.keyboard.press("Alt+ArrowUp")
    expect(names).to_have_text(["a2", "a1"])
    expect(names.first).to_be_focused()
    expect(page.locator("#moved")).to_have_text("a2 is number 1 now.")
    assert line() == ["a2", "b", "a1"]
    expect(page.locator("[data-place]")).to_have_text(["1", "2", "3"])

    lost.append(True)
    page.keyboard.press("Alt+ArrowDown")
    expect(page.locator(".toast")).to_contain_text("nothing was changed")
    expect(names).to_have_text(["a2", "a1"])
