"""The submit page in a real browser: the plan follows what is typed."""

import pytest
from playwright.sync_api import expect

from orchestrator.models import Job, JobState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


def test_the_plan_follows_the_form_and_a_change_that_starts_it_is_one_click(
    home, open_page, ada, bob, make_attempt, make_job, make_device
):
    devices = [make_device(index) for index in range(2)]
    make_attempt(make_job(owner=bob, name="theirs"), state=JobState.RUNNING, devices=devices[:1])
    page = open_page(ada, "/submit")
    plan = page.locator("#plan")
    expect(plan).to_contain_text("It would start at once")

    page.locator("#gpus").fill("2")
    page.locator("#args").fill("--lr 3e-4")
    page.locator("#file").set_input_files({"name": "fit.py", "mimeType": "text/x-python", "buffer": b"1\n"})
    expect(plan).to_contain_text("Waits for 2")
    expect(plan.locator("code")).to_have_text("berth run -g 2 fit.py -- --lr 3e-4")
    plan.get_by_role("button", name="use 1 device").click()

    expect(page.locator("#gpus")).to_have_value("1")
    expect(plan).to_contain_text("It would start at once")
    page.locator("#args").fill("'")
    expect(plan).to_contain_text("Arguments: A quotation mark is not closed")
    assert Job.objects.count() == 1


def test_browser_sends_every_field_of_a_clone_as_it_was(job_with_every_field, open_page, ada):
    parent = job_with_every_field
    page = open_page(ada, f"/submit?from={parent.pk}")
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url("**/jobs/*")

    clone = Job.objects.order_by("pk").last()
    assert clone is not None
    assert clone.pk != parent.pk
    assert clone.spec.model_dump() == parent.spec.model_dump()
