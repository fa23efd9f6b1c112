"""The page of usage: the table says what the chart shows, to everybody what is theirs to see."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.models import Attempt, AttemptState, Device, ExitKind, JobState, Lease
from tests.dashboard.markup import html_of

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def an_hour(make_job, make_device, ada):
    device = make_device(0)
    begin = timezone.now() - timedelta(hours=2)
    Device.objects.update(added_at=begin)
    job = make_job(ada, state=JobState.FAILED, submitted_at=begin, attempt_count=1)
    attempt = Attempt.objects.create(
        job=job, number=1, nonce="0", state=AttemptState.ENDED, kind=ExitKind.USER_ERROR, created_at=begin
    )
    Lease.objects.create(
        attempt=attempt, device=device, rank=0, started_at=begin, ended_at=begin + timedelta(hours=1)
    )


@pytest.mark.parametrize("address", ["/usage", "/usage.csv"])
def test_who_is_not_signed_in_is_asked_to(db, client, home, address):
    assert client.get(address).status_code == 302


def test_the_table_tells_hours_and_what_was_lost(reader, ada, an_hour):
    html = html_of(reader(ada).get("/usage"))

    assert '<th scope="row"><bdi>ada</bdi></th>' in html
    assert '<td class="number" data-label="GPU-hours">1.0</td>' in html
    assert '<td class="number" data-label="Lost">1.0</td>' in html
    assert "100 %" in html


def test_bob_sees_the_sum_of_others_and_no_name(reader, bob, an_hour):
    html = html_of(reader(bob).get("/usage"))

    assert "everybody else" in html
    assert "ada" not in html


@pytest.mark.parametrize(
    "query", ["?by=day", "?by=pool&days=7", "?by=nothing&days=many", f"?pool={HOSTILE}", "?pool=nowhere"]
)
def test_any_choice_in_the_address_is_a_page(query, reader, ada, an_hour):
    answer = reader(ada).get(f"/usage{query}")

    assert answer.status_code == 200
    assert HOSTILE not in html_of(answer)


def test_the_csv_is_a_download(reader, ada, an_hour):
    answer = reader(ada).get("/usage.csv?by=owner&days=7")

    assert answer["Content-Disposition"].startswith("attachment")
    assert answer.content.decode().splitlines()[1].startswith("ada,1.0")
