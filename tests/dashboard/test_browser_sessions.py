"""The page of sessions in a browser that stays open."""

import pytest
from playwright.sync_api import expect

from orchestrator.models import JobState
from tests.unix_sockets import unix_listener

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


def test_open_appears_on_an_open_page_once_the_program_listens(
    home, open_page, ada, make_job, make_attempt, make_device
):
    make_attempt(make_job(ada, name="other", spec={"kind": "session"}), state=JobState.RUNNING)
    job = make_job(ada, name="mine", spec={"kind": "session", "program": "jupyter"})
    page = open_page(ada, "/sessions")
    row = page.locator("#sessions-now tbody tr", has_text="mine")
    expect(row).to_contain_text("queued")

    make_attempt(job, state=JobState.RUNNING)
    expect(row).to_contain_text("starting")
    row.get_by_role("button", name="Stop").focus()
    with unix_listener(home.job(job.pk).attempt(1).session_socket):
        expect(row.get_by_role("link", name="Open")).to_be_visible()

    expect(row.get_by_role("button", name="Stop")).to_be_focused()
