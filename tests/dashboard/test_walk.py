"""Every address and every topic of the real ASGI application, as somebody who may not: nothing is open by accident."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, resolve

from dashboard.pages.reader import THEIR_OWN
from orchestrator.models import Attempt, Job, JobState, Person, PoolRight, Right, Role
from orchestrator.people import tokens
from tests.dashboard.markup import html_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)

# What answers to people who are not signed in, and why.
OPEN = {
    "/login": "the way in",
    "/login/password": "a step of the sign-in; leads to /login without the step before",
    "/login/factor": "likewise",
    "/login/enrol": "likewise",
    "/login/finish": "likewise",
    "/admin/login/": "leads to /login",
    "/invitation/x": "for those who have no account yet; 404 without a link that works",
    "/api/v1/health/live": "for load balancers",
    "/api/v1/health/ready": "for load balancers",
}
FOREIGN = "01890000-0000-7000-8000-000000000000"
TOPICS = ("devices", "jobs", "queue", "health", "job:{}", "metrics:{}", "log:{}:1:0")
PRIVATE = tuple(topic for topic in TOPICS if "{}" in topic)
ELSEWHERE = "operator of another pool"
ROLES = (Role.VIEWER, Role.SUBMITTER, ELSEWHERE)
SECRET = "the only place of this text"  # noqa: S105  # in a job's argument


@pytest.fixture(autouse=True)
def _home(home):
    """The application looks for its folder of static files when it is loaded."""


def application():
    from orchestrator.server.asgi import application

    return application


def addresses() -> list[str]:
    """One address for each pattern of the URL configuration, those of the admin and REST included."""
    return sorted(set(_walk(get_resolver().url_patterns, "/")))


def _walk(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[str]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, route)
        elif "(" not in route and "^" not in route:  # REST's "nothing here" and the admin's catch-all
            yield _filled(route)


def _filled(route: str, job: str = FOREIGN) -> str:
    values = {"job_id": job, "uuid": job, "action": "cancel", "path": "a.txt", "step": "1"}

    def fill(hit: re.Match[str]) -> str:
        kind, _, name = hit[1].rpartition(":")
        return values.get(name) or ("1" if kind == "int" else job if kind == "uuid" else "x")

    return re.sub(r"<([^>]+)>", fill, route)


@pytest.fixture
def adas_job(ada, make_attempt, make_job, home) -> Job:
    attempt: Attempt = make_attempt(make_job(ada, spec={"args": [SECRET]}), state=JobState.RUNNING)
    return attempt.job


def browser(user=None, token: str = "") -> httpx.AsyncClient:
    headers = {"Authorization": f"Token {token}"} if token else {}
    cookies = {}
    if user is not None:
        client = Client()
        client.force_login(user)
        cookies = {"berth_session": client.cookies["berth_session"].value}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=application(), raise_app_exceptions=False),
        base_url="http://localhost",
        headers=headers,
        cookies=cookies,
    )


def test_the_walk_sees_pages_rest_and_admin():
    found = addresses()

    assert len(found) > 100
    for known in (
        "/",
        f"/jobs/{FOREIGN}",
        "/audit",
        "/api/v1/jobs",
        "/api/v1/quotas",
        "/admin/orchestrator/pool/",
    ):
        assert known in found


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_t01_a_stranger_is_sent_to_the_sign_in_or_gets_401(method, home):
    async with browser() as stranger:
        for address in addresses():
            answer = await stranger.request(method, address)
            if address in OPEN:
                assert answer.status_code not in {401, 500}, address
            elif answer.status_code == 302:
                assert answer.headers["Location"].startswith(("/login?next=", "/admin/login/?next=")), address
            else:  # 403: a form without its token, 405: not this method
                assert answer.status_code in {401, 403, 404, 405}, address


def be(user, role: str, make_pool) -> None:
    """Give somebody one role, and no other."""
    Person.objects.filter(user=user).delete()
    if role == ELSEWHERE:
        PoolRight.objects.create(user=user, pool=make_pool("other"), right=Right.OPERATE)
    else:
        Person.objects.create(user=user, role=role)


async def test_t02_who_has_no_right_in_its_pool_finds_nothing_of_anothers_job(adas_job, bob, root, make_pool):
    as_viewer = await sync_to_async(browser)(bob)
    mine = [_filled(route, str(adas_job.pk)) for route in _routes_of_jobs()]
    assert len(mine) > 15
    for role in ROLES:
        await sync_to_async(be)(bob, role, make_pool)
        for address in mine:
            answer = await as_viewer.get(address)
            # 400: what it was asked for is looked at first; that says nothing about the job.
            assert answer.status_code in {400, 404, 405}, (role, address)
            assert SECRET not in answer.text
    token = (await sync_to_async(tokens.issue)(root, name="reads", scope="read"))[1]
    async with browser(token=token) as reading:
        for address in (each for each in mine if each.startswith("/api/")):
            assert (await reading.post(address)).status_code in {403, 404, 405}, address
    row = await Job.objects.aget(pk=adas_job.pk)
    assert (row.state, row.stop_wanted) == (JobState.RUNNING, False)


def _routes_of_jobs() -> list[str]:
    def routes(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[str]:
        for pattern in patterns:
            route = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from routes(pattern.url_patterns, route)
            elif "job_id" in route and "admin" not in route:
                yield route

    return sorted(set(routes(get_resolver().url_patterns, "/")))


@pytest.mark.parametrize("role", ROLES)
async def test_pages_of_admins_are_closed_to_others(role, bob, home, make_pool):
    await sync_to_async(be)(bob, role, make_pool)
    client = await sync_to_async(browser)(bob)
    for address in addresses():
        if address.startswith("/admin/") and address not in OPEN and "logout" not in address:
            answer = await client.get(address)
            assert answer.status_code in {302, 403, 404}, address
            if answer.status_code == 302:
                assert "/login" in answer.headers["Location"], address
    for address in ("/audit", "/people", "/server"):
        assert (await client.get(address)).status_code == 403, address


async def frames(topic: str, *, cookie: str = "", token: str = "") -> list[dict[str, Any]]:
    """What a socket of the real application answers to one subscription, up to the first frame about it."""
    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
    headers += [(b"cookie", f"berth_session={cookie}".encode())] if cookie else []
    headers += [(b"authorization", f"Token {token}".encode())] if token else []
    scope = {
        "type": "websocket",
        "path": "/ws/v1/",
        "query_string": b"",
        "headers": headers,
        "subprotocols": [],
    }
    socket = ApplicationCommunicator(application(), scope)
    await socket.send_input({"type": "websocket.connect"})
    found: list[dict[str, Any]] = []
    while True:
        event = await socket.receive_output(10)
        if event["type"] == "websocket.close":
            return [*found, {"closed": event["code"]}]
        if event["type"] == "websocket.accept":
            text = json.dumps({"op": "subscribe", "topic": topic, "after": None})
            await socket.send_input({"type": "websocket.receive", "text": text, "bytes": None})
            continue
        frame = json.loads(event["text"])
        found.append(frame)
        if frame.get("topic") == topic:
            await socket.send_input({"type": "websocket.disconnect", "code": 1000})
            await socket.wait(PATIENCE_S)
            return found


def cookie_of(user) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies["berth_session"].value


@pytest.mark.parametrize("topic", TOPICS)
async def test_t01_a_stranger_gets_no_topic(topic, home):
    assert await frames(topic.format(FOREIGN)) == [{"closed": 4001}]


@pytest.mark.parametrize("topic", PRIVATE)
@pytest.mark.parametrize("role", ROLES)
async def test_b63_anothers_topic_is_answered_like_none(topic, role, adas_job, bob, make_pool):
    await sync_to_async(be)(bob, role, make_pool)
    cookie = await sync_to_async(cookie_of)(bob)

    found = await frames(topic.format(adas_job.pk), cookie=cookie)

    missing = await frames(topic.format(FOREIGN), cookie=cookie)
    assert found[-1]["data"] == missing[-1]["data"] == {"status": 404}
    assert SECRET not in str(found)


async def test_operators_of_the_pool_and_read_tokens_of_the_owner_may_watch(adas_job, ada, bob):
    await sync_to_async(PoolRight.objects.create)(user=bob, pool_id="default", right=Right.OPERATE)
    cookie = await sync_to_async(cookie_of)(bob)
    token = (await sync_to_async(tokens.issue)(ada, name="reads", scope="read"))[1]

    topic = f"job:{adas_job.pk}"
    assert (await frames(topic, cookie=cookie))[-1]["type"] == "snapshot"
    assert (await frames(topic, token=token))[-1]["type"] == "snapshot"


async def test_t05_a_right_that_is_taken_ends_the_open_sockets(adas_job, bob):
    from dashboard.live import passes

    right = await sync_to_async(PoolRight.objects.create)(user=bob, pool_id="default", right=Right.OPERATE)
    cookie = await sync_to_async(cookie_of)(bob)
    holder = await sync_to_async(passes.identify)({}, {"berth_session": cookie})
    assert holder is not None
    assert await sync_to_async(passes.still_valid)([holder]) == [True]

    await sync_to_async(right.delete)()

    assert await sync_to_async(passes.still_valid)([holder]) == [False]


def test_a_viewer_changes_nothing_on_any_page(adas_job, bob, make_job):
    Person.objects.create(user=bob, role=Role.VIEWER)
    own = make_job(bob)
    browser = Client(raise_request_exception=False)  # without checks of CSRF: the role alone has to hold
    browser.force_login(bob)
    closed = 0
    for route in sorted(set(_walk(get_resolver().url_patterns, "/"))):
        if route.startswith(("/api/", "/admin/")) or route in OPEN:
            continue
        address = route.replace(FOREIGN, str(own.pk))
        if resolve(address).url_name in THEIR_OWN:
            continue
        answer = browser.post(address, {"password": "x"})
        assert answer.status_code == 403, address
        closed += 1
    assert closed > 10
    assert Job.objects.get(pk=own.pk).state == JobState.QUEUED


def test_a_viewers_own_job_offers_no_actions(bob, make_job):
    job = make_job(bob)
    browser = Client()
    browser.force_login(bob)
    page = f"/jobs/{job.pk}"
    assert ">Hold<" in html_of(browser.get(page))
    Person.objects.create(user=bob, role=Role.VIEWER)

    assert ">Hold<" not in html_of(browser.get(page))


def test_operators_of_a_pool_open_its_jobs_from_the_queue(adas_job, make_job, bob):
    browser = Client()
    browser.force_login(bob)
    link = f'href="/jobs/{adas_job.pk}"'.encode()
    assert link not in browser.get("/queue").content
    PoolRight.objects.create(user=bob, pool_id="default", right=Right.OPERATE)

    assert link in browser.get("/queue").content
