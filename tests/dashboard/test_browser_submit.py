"""The submit page in a real browser: the plan follows what is typed."""

import pytest
from playwright.sync_api import expect

from orchestrator.models import Dataset, DatasetRoot, Job, JobState

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


def test_a_dataset_a_time_and_a_job_are_chosen_and_not_typed(
    home, open_page, ada, make_job, make_device, make_pool
):
    make_device(0)
    folder = DatasetRoot.objects.create(name="data", path=str(home.root))
    Dataset.objects.create(name="words", root=folder, path="words", owner=ada)
    before = make_job(name="first-part")
    page = open_page(ada, "/submit", timezone_id="Europe/Berlin")
    args, start = page.locator("#args"), page.locator("#not_before")
    args.fill("--lr 1e-3")

    page.locator("#datasets").select_option(index=0)
    expect(args).to_have_value("--lr 1e-3 --data {dataset:words}")
    page.locator("#datasets").select_option([])
    expect(args).to_have_value("--lr 1e-3")

    page.get_by_text("More: module or command").click()
    page.get_by_label("Start not before, your time").fill("2027-01-05T09:30")
    expect(start).to_have_value("2027-01-05T08:30:00Z")
    page.get_by_label("Add one of your jobs by name").select_option(label=f"first-part #{before.short_id}")
    expect(page.locator("#depends_on")).to_have_value(str(before.pk))
    expect(page.locator("#plan code")).to_contain_text(f"--after {before.pk}")


def test_the_plan_stays_beside_a_long_form(home, open_page, ada, make_device):
    make_device(0)
    page = open_page(ada, "/submit")
    page.get_by_text("More: module or command").click()
    form, plan = page.locator(".submit-fields"), page.locator("#plan")
    assert (plan.bounding_box() or {})["x"] > (form.bounding_box() or {})["width"]

    page.locator("#tags").scroll_into_view_if_needed()

    expect(plan).to_be_in_viewport()
    expect(page.locator("#run")).to_be_in_viewport()
