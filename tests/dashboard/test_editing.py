"""Fields of a job that are changed where they stand: who gets a button, and what it says."""

import re

import pytest

from orchestrator.models import Job, JobState, Person, PoolRight, Right, Role
from orchestrator.people import rights
from tests.dashboard.conftest import settle
from tests.dashboard.markup import html_of

pytestmark = pytest.mark.django_db(transaction=True)


def fields_of(page: str) -> set[str]:
    return set(re.findall(r'data-edit="(\w+)"', page))


def test_a_waiting_job_offers_its_fields_and_an_ended_one_its_name(reader, ada, make_job):
    waits, ended = make_job(time_limit_s=5400, tags=["paper"]), make_job(state=JobState.FAILED)

    page = html_of(reader(ada).get(f"/jobs/{waits.pk}"))

    assert fields_of(page) == {"name", "priority", "time_limit_s"}
    assert 'aria-label="Remove the tag paper"' in page
    assert 'aria-label="Time limit of digits: 1 h 30 min. Change"' in page
    assert 'data-value="1h30m"' in page
    assert fields_of(html_of(reader(ada).get(f"/jobs/{ended.pk}"))) == {"name"}


def test_who_may_only_look_gets_text(reader, ada, make_job):
    job = make_job(priority=37)
    Person.objects.create(user=ada, role=Role.VIEWER)

    page = html_of(reader(ada).get(f"/jobs/{job.pk}"))

    assert fields_of(page) == set()
    assert "<bdi>37</bdi>" in page
    hits = reader(ada).get("/api/v1/search?q=rename+digits").json()["results"]
    assert [hit for hit in hits if hit["edit"]] == []


def test_the_rule_for_a_list_is_that_for_one_job(ada, bob, root, make_job, make_pool):
    mine, others = make_job(ada), make_job(bob, pool=make_pool("other"))
    assert [rights.steered_by(ada)(job) for job in (mine, others)] == [True, False]
    assert [rights.steered_by(root)(job) for job in (mine, others)] == [True, True]

    PoolRight.objects.create(user=ada, pool_id="other", right=Right.OPERATE)
    assert rights.steered_by(ada)(others)

    Person.objects.create(user=bob, role=Role.VIEWER)
    assert not rights.steered_by(bob)(others)


def test_what_a_name_holds_is_text_in_the_button(reader, ada, make_job):
    job = make_job(name="\"><script>alert('x')</script>")

    assert "<script>alert" not in html_of(reader(ada).get(f"/jobs/{job.pk}"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")
def test_a_priority_is_changed_and_undone_from_the_keyboard_and_a_limit_from_the_palette(
    open_page, ada, make_job
):
    job = make_job(name="tiny", priority=50)
    page = open_page(ada, f"/jobs/{job.pk}")
    value = page.get_by_role("button", name="Priority of tiny: 50. Change")

    value.focus()
    page.keyboard.press("Enter")
    field = page.get_by_role("spinbutton", name="Priority of tiny")
    field.fill("40")
    page.keyboard.press("Enter")

    toast = page.locator("#toasts .toast")
    page.get_by_text("Priority of tiny: 40.").wait_for()
    assert Job.objects.get(pk=job.pk).priority == 40
    toast.get_by_role("button", name="Undo").click()
    page.locator('[data-edit="priority"]', has_text="50").wait_for()
    assert Job.objects.get(pk=job.pk).priority == 50

    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search or run").fill("limit tiny")
    page.get_by_role("option", name="Limit: tiny").wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Time limit of tiny").fill("soon")
    page.keyboard.press("Enter")
    page.get_by_text("This is not a duration").wait_for()
    page.get_by_role("textbox", name="Time limit of tiny").fill("1h30m")
    page.keyboard.press("Enter")
    page.get_by_text("Time limit of tiny: 1 h 30 min.").wait_for()
    assert Job.objects.get(pk=job.pk).time_limit_s == 5400
    settle(page)
