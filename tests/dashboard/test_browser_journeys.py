"""The journeys of a day in the browser, with as many keys and clicks as the design promises and no more."""

import re
from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, Page, expect

from orchestrator.models import Device, JobState
from tests.dashboard.conftest import settle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


@dataclass
class Hands:
    """Counts what a person does; typing of names and arguments is not counted, as in the design."""

    page: Page
    done: int = 0

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.done += 1

    def click(self, place: Locator) -> None:
        place.click()
        self.done += 1

    def spent(self) -> int:
        spent, self.done = self.done, 0
        return spent


@pytest.fixture
def hands(open_page, root):
    def begin(address: str) -> Hands:
        page = open_page(root, address)
        expect(page.locator("#palette-open")).to_be_visible()
        return Hands(page)

    return begin


def at(page: Page, address: str) -> None:
    expect(page).to_have_url(re.compile(address))
    expect(page.locator("h1")).to_be_visible()
    settle(page)


def test_a_script_is_submitted_and_again_with_one_argument_changed(hands, root, make_device, tmp_path):
    make_device(0)
    script = tmp_path / "train.py"
    script.write_text("print('step 1 loss 0.5')\n")
    person = hands("/")
    page = person.page

    person.press("c")
    at(page, "/submit$")
    page.locator("#file").set_input_files(script)
    person.press("Control+Enter")
    at(page, r"/jobs/[0-9a-f-]{36}$")
    assert person.spent() == 2  # and the choice of the file

    person.press("n")
    at(page, "/submit")
    page.get_by_label("Arguments", exact=True).fill("--lr 1e-3")
    person.press("Control+Enter")
    expect(page.locator("#job h1")).to_be_visible()
    expect(page.locator("#job")).to_contain_text("--lr 1e-3")
    assert person.spent() == 2


def test_room_reason_and_watching_are_two_or_three_keys_away(
    hands, root, make_attempt, make_job, make_device
):
    make_attempt(make_job(root, name="runs"), state=JobState.RUNNING, devices=[make_device(0)])
    make_job(
        root, name="waits", wait_code="devices", wait_facts={"sentence": "Waits for 1 device; none is free."}
    )
    person = hands("/queue")
    page = person.page

    person.press("g", "o")
    at(page, "/$")
    expect(page.locator("#box-line")).to_contain_text("0 of 1")
    assert person.spent() == 2

    person.press("g", "q")
    at(page, "/queue$")
    expect(page.locator("#queue")).to_contain_text("none is free")  # without any key
    person.press("j", "e")
    expect(page.locator("details[data-explain][open] ul")).to_be_visible()
    assert person.spent() == 4

    person.press("g", "j")
    at(page, "/jobs$")
    person.press("j", "Enter")
    at(page, r"/jobs/[0-9a-f-]{36}$")
    assert person.spent() == 4
    person.press("g", "j")
    at(page, "/jobs$")
    person.spent()
    person.click(page.get_by_role("link", name="runs", exact=True))
    at(page, r"/jobs/[0-9a-f-]{36}$")
    assert person.spent() == 1


def test_draining_is_said_to_the_palette(hands, make_device):
    make_device(4)
    person = hands("/")
    page = person.page

    person.press("Control+k")
    expect(page.get_by_role("combobox", name="Search or run")).to_be_focused()
    page.keyboard.type("drain 4")
    expect(page.get_by_role("option").first).to_contain_text(re.compile("drain", re.IGNORECASE))
    person.press("Enter")
    expect(page.locator(".toast")).to_be_visible()
    assert person.spent() == 2
    assert Device.objects.get(index=4).admin_state == "draining"


def drop_script(page: Page) -> None:
    """Drop dropped.py on the middle of the page."""
    given = page.evaluate_handle(
        """() => {
          const given = new DataTransfer();
          given.items.add(new File(["print('step 1 loss 0.5')"], "dropped.py", { type: "text/x-python" }));
          return given;
        }"""
    )
    page.locator("main").dispatch_event("drop", {"dataTransfer": given})


@pytest.mark.parametrize("address", ["/submit", "/sweeps/new", "/new-service"])
def test_a_script_dropped_on_a_form_with_code_is_taken_by_this_form(hands, make_device, address):
    make_device(0)
    page = hands(address).page

    drop_script(page)

    assert page.evaluate("() => document.getElementById('file').files[0].name") == "dropped.py"
    expect(page).to_have_url(re.compile(f"{address}$"))
    settle(page)
    expect(page).to_have_url(re.compile(f"{address}$"))


def test_a_script_is_dropped_on_any_page_and_run(hands, make_device):
    make_device(0)
    person = hands("/queue")
    page = person.page

    drop_script(page)
    person.done += 1
    at(page, "/submit$")
    expect(page.locator("#name")).to_have_attribute("placeholder", "dropped")
    person.click(page.get_by_role("button", name="Run", exact=True))
    expect(page.locator("#job h1")).to_contain_text("dropped")
    assert person.spent() == 2
    settle(page)  # files on their way would be left open


def test_a_service_is_begun_given_a_key_and_stopped_by_clicks(open_page, ada, make_device):
    make_device(0)
    page = open_page(ada, "/new-service")
    page.get_by_label("Name", exact=True).fill("echo")
    page.get_by_label("Command to run").fill("python serve.py")
    code = {"name": "serve.py", "mimeType": "text/x-python", "buffer": b"print(1)"}
    page.set_input_files("#file", files=[code])
    page.get_by_role("button", name="Begin").click()
    page.get_by_label("New key for").fill("me")
    page.get_by_role("button", name="Make a key").click()
    key = page.locator("#new-key").inner_text()

    expect(page.locator(".command")).to_contain_text(f"Bearer {key}")
    page.get_by_role("button", name="Stop echo").click()
    expect(page.locator("#service-state")).to_have_text("stopped")
