"""The long poll: the websocket's frames for who cannot have one, by the same rights."""

import asyncio
from typing import Any, cast

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from dashboard.live import feed, polling
from dashboard.live.polling import BadQuery, WithPolling, read_query
from orchestrator.models import Job, JobState
from orchestrator.people import tokens

pytestmark = pytest.mark.django_db(transaction=True)


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("asked for another address")


@pytest.fixture
def ask(home, monkeypatch):
    """Ask as somebody; returns the status and the answer."""
    monkeypatch.setattr(polling, "LINGER_S", 0)
    monkeypatch.setattr(polling, "LONGEST_WAIT_S", 3.0)

    async def ask(user, query: str, *, host: str = "localhost", **headers: str) -> tuple[int, Any]:
        cookies = {}
        if user is not None:
            browser = Client()
            await sync_to_async(browser.force_login)(user)
            cookies = {"berth_session": browser.cookies["berth_session"].value}
        transport = httpx.ASGITransport(app=cast(Any, WithPolling(nothing)))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}", cookies=cookies) as web:
            answer = await web.get(f"/api/v1/poll?{query}", headers=headers)
        await asyncio.sleep(0.05)  # what lingers leaves
        return answer.status_code, answer.json()

    return ask


async def test_the_whole_state_comes_first_and_then_what_is_new(ask, ada, make_job):
    job = await sync_to_async(make_job)()
    topic = f"job:{job.pk}"

    _, (hello, first) = await ask(ada, f"topic={topic}&after=")
    assert hello["type"] == "hello"
    assert (first["type"], first["data"]["state"]) == ("snapshot", "queued")

    await Job.objects.filter(pk=job.pk).aupdate(state=JobState.HELD)
    _, (_, second) = await ask(ada, f"stream={feed.STREAM}&topic={topic}&after={first['seq']}")
    assert second["data"]["state"] == "held"
    assert second["seq"] > first["seq"]


async def test_it_waits_until_there_is_something_new(ask, ada, make_job):
    job = await sync_to_async(make_job)()
    asked = asyncio.create_task(ask(ada, f"topic=metrics:{job.pk}&after=0"))

    await asyncio.sleep(0.3)
    assert not asked.done()
    _, frames = await asked
    assert [frame["type"] for frame in frames] == ["hello"]


async def test_a_counter_of_another_start_counts_for_nothing(ask, ada, make_job):
    job = await sync_to_async(make_job)()

    _, (_, frame) = await ask(ada, f"stream=before&topic=job:{job.pk}&after=5")

    assert frame["type"] == "snapshot"


async def test_b63_who_may_not_read_a_topic_is_told_what_one_that_is_not_there_is(ask, bob, make_job):
    job = await sync_to_async(make_job)()

    for topic in (f"job:{job.pk}", f"metrics:{job.pk}", f"log:{job.pk}:1:0", "nonsense"):
        _, (_, frame) = await ask(bob, f"topic={topic}&after=")
        assert (frame["type"], frame["data"]) == ("error", {"status": 404})


async def test_who_is_not_signed_in_gets_nothing(ask, db):
    status, problem = await ask(None, "topic=devices")

    assert (status, problem["status"], problem["code"], problem["errors"]) == (
        401,
        401,
        "unauthenticated",
        {},
    )


async def test_a_token_says_who_asks(ask, ada):
    _, secret = await sync_to_async(tokens.issue)(ada, name="t", scope="read", life_s=None)

    status, _ = await ask(None, "topic=jobs", Authorization=f"Token {secret}")
    assert status == 200
    status, _ = await ask(None, "topic=jobs", Authorization="Token wrong")
    assert status == 401


async def test_b62_another_name_of_the_host_is_refused(ask, ada):
    status, _ = await ask(ada, "topic=devices", host="evil.example")

    assert status == 400


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"after=1",
        b"topic=devices&after=-1",
        b"topic=devices&after=1e3",
        b"topic=devices&after=99999999999999999999",
        b"topic=devices&wait=1",
        b"&".join(b"topic=%d" % number for number in range(65)),
        b"topic=" + b"x" * 9000,
    ],
)
def test_b61_a_query_that_breaks_the_rules_is_refused_with_a_sentence(query):
    with pytest.raises(BadQuery, match=r"\.$"):
        read_query(query)


def test_each_topic_has_its_own_seq():
    assert read_query(b"stream=s&topic=devices&after=7&topic=jobs&after=&topic=queue") == (
        {"devices": 7, "jobs": None, "queue": None},
        "s",
    )
