"""The websocket: who may open it, what breaks its rules, and how it goes on after a lost connection."""

import asyncio
import dataclasses
import json
import socket as stdlib_socket
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.test import Client
from django.utils import timezone

from dashboard.live import consumers, feed, frames, passes, problems, topics
from dashboard.urls import websocket_urlpatterns
from orchestrator.facts.record import sentence_only
from orchestrator.models import Job, JobState
from orchestrator.people import tokens
from orchestrator.store.metrics.writer import MetricWriter, Point
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)


def cookie_of(user) -> str:
    client = Client()
    client.force_login(user)
    return f"berth_session={client.cookies['berth_session'].value}"


class Socket(ApplicationCommunicator):
    """A page's socket; ``expect`` skips what was not asked about.  (channels' own needs daphne.)"""

    def __init__(self, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        path, _, query = path.partition("?")
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": query.encode(),
            "headers": headers,
            "subprotocols": [],
        }
        super().__init__(URLRouter(websocket_urlpatterns), scope)

    async def open(self) -> bool:
        await self.send_input({"type": "websocket.connect"})
        first: dict[str, Any] = await self.receive_output(5)
        return bool(first["type"] == "websocket.accept")

    async def close(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(PATIENCE_S)

    async def say(self, text: str | None = None, data: bytes | None = None) -> None:
        await self.send_input({"type": "websocket.receive", "text": text, "bytes": data})

    async def ask(self, topic: str, after: int | None = None) -> None:
        await self.say(json.dumps({"op": "subscribe", "topic": topic, "after": after}))

    async def ask_lines(self, topic: str, start: int, count: int) -> None:
        await self.say(json.dumps({"op": "lines", "topic": topic, "from": start, "count": count}))

    async def frame(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        event = await self.receive_output(timeout_s)
        assert event["type"] == "websocket.send", event
        frame: dict[str, Any] = json.loads(event["text"])
        return frame

    async def expect(self, topic: str, kind: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        async with asyncio.timeout(timeout_s):
            while True:
                frame = await self.frame(timeout_s)
                if frame.get("topic") == topic and frame["type"] == kind:
                    return frame

    async def closed_with(self, timeout_s: float = PATIENCE_S) -> int:
        while True:
            event = await self.receive_output(timeout_s)
            if event["type"] == "websocket.close":
                return int(event["code"])


@asynccontextmanager
async def socket_of(
    user=None, *, origin: str | None = "http://localhost", token: str = "", path: str = "/ws/v1/"
):
    """An open socket, its hello still to be read; None where the handshake was refused."""
    headers = [(b"host", b"localhost")]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    if user is not None:
        headers.append((b"cookie", (await sync_to_async(cookie_of)(user)).encode()))
    if token:
        headers.append((b"authorization", f"Token {token}".encode()))
    socket = Socket(path, headers)
    is_open = await socket.open()
    try:
        yield socket if is_open else None
    finally:
        with suppress(asyncio.CancelledError):
            await socket.close()


async def test_the_first_frame_is_hello_with_stream_and_clock(home, ada):
    async with socket_of(ada) as socket:
        frame = await socket.frame()

    assert frame["type"] == "hello"
    assert frame["data"]["stream"] == feed.STREAM
    assert abs(frame["data"]["now"] - timezone.now().timestamp()) < 5
    assert frame["data"]["tick_s"] == 0.5


async def test_who_is_not_signed_in_is_told_so_and_gets_nothing(home):
    async with socket_of() as socket:
        assert await socket.closed_with() == consumers.SIGNED_OUT


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "http://evil.example",
            "https://localhost.evil.example",
            "http://localhost:9999",
            "null",
            "file://",
        ),
        *("https://localhost", "https://localhost:80"),  # this server is reached by http
    ],
)
async def test_b62_a_foreign_origin_is_refused(home, ada, origin):
    async with socket_of(ada, origin=origin) as socket:
        assert socket is None


@pytest.mark.parametrize(("origin", "is_ours"), [("https://localhost", True), ("http://localhost", False)])
async def test_b62_behind_tls_the_origin_is_https(home, settings, ada, origin, is_ours):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, tls=True)
    async with socket_of(ada, origin=origin) as socket:
        assert (socket is not None) == is_ours


async def test_b62_without_an_origin_only_a_token_will_do(home, ada):
    _, text = await sync_to_async(tokens.issue)(ada, name="cli")

    async with socket_of(ada, origin=None) as socket:
        assert socket is None
    async with socket_of(origin=None, token=text) as socket:
        assert (await socket.frame())["type"] == "hello"
    async with socket_of(ada, origin=None, token="berth_wrong") as socket:  # noqa: S106  # no token at all
        assert socket is None


async def test_b64_a_token_in_the_address_counts_for_nothing(home, ada):
    _, text = await sync_to_async(tokens.issue)(ada, name="cli")

    async with socket_of(path=f"/ws/v1/?token={text}") as socket:
        assert await socket.closed_with() == consumers.SIGNED_OUT


async def test_a_foreign_host_header_is_refused(home, ada):
    headers = [(b"host", b"evil.example"), (b"origin", b"http://evil.example")]
    assert not await Socket("/ws/v1/", headers).open()


async def test_another_address_has_no_socket(home, ada):
    async with socket_of(ada, path="/ws/v2/") as socket:
        assert socket is None


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"text": "hello?"}, 1007),
        ({"text": '{"op": "subscribe"'}, 1007),
        ({"text": '{"op": "subscribe", "topic": "job:\\u0000"}'}, 1008),
        ({"text": '{"op": "subscribe", "topic": "job:\\ud800"}'}, 1007),
        ({"data": b'{"op":"subscribe","topic":"devices"}'}, 1003),
        ({"text": '{"op": "drop", "topic": "devices"}'}, 1008),
        ({"text": '["subscribe"]'}, 1008),
        ({"text": '{"op": "subscribe", "topic": 7}'}, 1008),
        ({"text": '{"op": "subscribe", "topic": "devices", "after": -1}'}, 1008),
        ({"text": '{"op": "subscribe", "topic": "devices", "after": true}'}, 1008),
        ({"text": '{"op": "subscribe", "topic": "devices", "after": 1e400}'}, 1007),
        ({"text": '{"op": ["subscribe"], "topic": "devices"}'}, 1008),
        ({"text": '{"op": "lines", "topic": "devices"}'}, 1008),
        ({"text": '{"op": "lines", "topic": "devices", "from": -1, "count": 1}'}, 1008),
        ({"text": '{"op": "lines", "topic": "devices", "from": 0, "count": 501}'}, 1008),
        ({"text": " " * 10_000_000}, 1009),
    ],
)
async def test_b61_what_breaks_the_protocol_ends_the_connection(home, ada, sent, code):
    async with socket_of(ada) as socket:
        await socket.say(**sent)
        assert await socket.closed_with() == code


@pytest.mark.slow
async def test_b61_ten_thousand_subscriptions_end_one_connection_and_no_other(home, ada, write_readings):
    write_readings("sim-0")
    async with socket_of(ada) as calm, socket_of(ada) as mad:
        for number in range(10_000):
            await mad.ask(f"log:01890000-0000-7000-8000-{number:012}:1:0")
        assert await mad.closed_with() == 1008

        await calm.ask("devices")
        assert (await calm.expect("devices", "snapshot"))["data"]["devices"][0]["id"] == "sim-0"


async def test_b61_more_than_64_topics_end_the_connection(home, ada, make_job):
    jobs = [await sync_to_async(make_job)() for _ in range(65)]
    async with socket_of(ada) as socket:
        for job in jobs:
            await socket.ask(f"job:{job.pk}")
        assert await socket.closed_with() == 1008


@pytest.mark.parametrize("kind", ["job:{0}", "metrics:{0}", "log:{0}:1:0"])
async def test_b63_anothers_job_is_answered_like_one_that_does_not_exist(home, bob, make_attempt, kind):
    attempt = await sync_to_async(make_attempt)()
    async with socket_of(bob) as socket:
        await socket.frame()
        foreign, missing = kind.format(attempt.job_id), kind.format("01890000-0000-7000-8000-000000000000")
        for topic in (foreign, missing):
            await socket.ask(topic)
        answers = [await socket.frame(), await socket.frame()]

    assert answers == [
        {"topic": topic, "type": "error", "data": {"status": 404}} for topic in (foreign, missing)
    ]


@pytest.mark.parametrize(
    "topic", ["", "nothing", "job:", "log:x", "job:../../etc", "devices ", "log:{0}:0:9", "x" * 3000]
)
async def test_an_unknown_topic_is_an_error_and_no_more(home, ada, make_attempt, topic):
    attempt = await sync_to_async(make_attempt)()
    async with socket_of(ada) as socket:
        await socket.frame()
        await socket.ask(topic.format(attempt.job_id))
        assert (await socket.frame())["data"] == {"status": 404}
        await socket.ask(f"job:{attempt.job_id}")
        assert (await socket.expect(f"job:{attempt.job_id}", "snapshot"))["data"]["state"] == "starting"


async def test_staff_may_watch_any_job(home, root, make_job):
    job = await sync_to_async(make_job)()
    async with socket_of(root) as socket:
        await socket.ask(f"job:{job.pk}")
        assert (await socket.expect(f"job:{job.pk}", "snapshot"))["data"]["job"] == str(job.pk)


async def test_everybody_gets_their_own_jobs_and_the_public_side_of_the_queue(home, ada, bob, make_job):
    mine = await sync_to_async(make_job)(name="mine", last_values={"loss": 0.5})
    others = await sync_to_async(make_job)(
        bob, name="others", last_values={"loss": 0.25}, why=sentence_only("private").as_json()
    )
    async with socket_of(ada) as socket:
        await socket.ask("jobs")
        jobs = (await socket.expect("jobs", "snapshot"))["data"]["jobs"]
        await socket.ask("queue")
        queue = (await socket.expect("queue", "snapshot"))["data"]["jobs"]

    assert [(row["name"], row["loss"]) for row in jobs] == [("mine", "0.5")]
    assert {row["id"] for row in queue} == {mine.short_id, others.short_id}
    assert all("loss" not in row and "job" not in row and "progress" not in row for row in queue)
    assert "private" not in json.dumps(queue)


@pytest.mark.slow
async def test_a_change_in_the_database_arrives_without_redis_within_two_seconds(home, ada, make_job):
    job = await sync_to_async(make_job)()
    async with socket_of(ada) as socket:
        await socket.ask(f"job:{job.pk}")
        first = await socket.expect(f"job:{job.pk}", "snapshot")
        await sync_to_async(Job.objects.filter(pk=job.pk).update)(state=JobState.HELD, version=1)
        second = await socket.expect(f"job:{job.pk}", "state", timeout_s=2)
        said = await sync_to_async(problems.current)()

    assert second["seq"] == first["seq"] + 1
    assert second["data"]["state"] == "held"
    assert [problem["part"] for problem in said] == ["readings", "redis"]


@pytest.mark.slow
async def test_points_go_on_exactly_after_a_lost_connection(home, ada, make_attempt):
    attempt = await sync_to_async(make_attempt)()
    topic = f"metrics:{attempt.job_id}"
    writer = MetricWriter(home.job(attempt.job_id).metrics, 1, 1000.0, None)

    async def report(first: int, last: int) -> None:
        writer.append([Point("loss", step, 1000.0 + step, 1.0) for step in range(first, last)])
        seq = writer.flush()["seq"]
        await sync_to_async(Job.objects.filter(pk=attempt.job_id).update)(metric_seq=seq)

    await report(0, 10)
    async with socket_of(ada) as socket:
        await socket.ask(topic, 0)
        before = await socket.expect(topic, "points")
    await report(10, 25)  # while nobody is connected
    async with socket_of(ada) as socket:
        await socket.ask(topic, before["seq"])
        missed = await socket.expect(topic, "points")
        await report(25, 30)
        live = await socket.expect(topic, "points")
    writer.close()

    seen = [step for frame in (before, missed, live) for step in frame["data"]["loss"]["x"]]
    assert seen == list(range(30))


async def test_a_seq_that_the_server_does_not_have_is_a_gap(home, ada, make_attempt):
    attempt = await sync_to_async(make_attempt)()
    topic = f"metrics:{attempt.job_id}"
    async with socket_of(ada) as socket:
        await socket.frame()
        await socket.ask(topic, 5000)
        assert await socket.frame() == {"topic": topic, "type": "gap", "from": 0}


@pytest.mark.slow
async def test_a_log_is_followed_as_it_grows(home, ada, make_attempt):
    attempt = await sync_to_async(make_attempt)()
    topic = f"log:{attempt.job_id}:1:0"
    path = home.job(attempt.job_id).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_text("one\n")
    async with socket_of(ada) as socket:
        await socket.ask(topic, 0)
        first = await socket.expect(topic, "chunk")
        with path.open("a") as file:
            file.write("<b>two</b>\n")
        second = await socket.expect(topic, "chunk")

    assert (first["data"]["text"], second["data"]["text"]) == ("one\n", "<b>two</b>\n")
    assert second["data"]["offset"] == first["seq"] == 4


async def test_lines_of_a_log_that_is_followed_come_by_number(home, ada, make_attempt):
    attempt = await sync_to_async(make_attempt)()
    topic = f"log:{attempt.job_id}:1:0"
    path = home.job(attempt.job_id).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"line {number}\n" for number in range(3_000)) + "\x1b]0;title\x07open")
    async with socket_of(ada) as socket:
        await socket.ask(topic, path.stat().st_size)
        await socket.ask_lines(topic, 2_999, 500)
        answer = await socket.expect(topic, "lines")
        for _ in range(consumers.BURST + 100):  # as often as somebody who drags the scroll bar for seconds
            await socket.ask_lines(topic, 7, 1)
            again = await socket.expect(topic, "lines")

    assert answer["from"] == 2_999
    assert "seq" not in answer
    assert [(line["number"], line["text"]) for line in answer["data"]["lines"]] == [
        (2_999, "line 2999"),
        (3_000, "open"),
    ]
    assert (answer["data"]["total"], answer["data"]["open"]) == (3_001, True)
    assert [line["text"] for line in again["data"]["lines"]] == ["line 7"]


async def test_b63_a_socket_has_no_lines_of_a_log_that_it_does_not_follow(home, ada, bob, make_attempt):
    attempt = await sync_to_async(make_attempt)()
    topic = f"log:{attempt.job_id}:1:0"
    path = home.job(attempt.job_id).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_text("secret\n")
    async with socket_of(bob) as socket:
        await socket.ask(topic)
        await socket.expect(topic, "error")
        for wanted in (topic, "devices", "x" * 3_000):
            await socket.ask_lines(wanted, 0, 1)
            assert (await socket.expect(wanted[:120], "lines"))["data"] is None
    async with socket_of(ada) as socket:
        await socket.ask(topic)
        await socket.say(json.dumps({"op": "unsubscribe", "topic": topic}))
        await socket.ask_lines(topic, 0, 1)
        assert (await socket.expect(topic, "lines"))["data"] is None


async def test_b56_b63_a_flood_of_log_reaches_a_reader_at_a_bounded_rate(home, ada, make_attempt):
    attempt = await sync_to_async(make_attempt)()
    topic = f"log:{attempt.job_id}:1:0"
    path = home.job(attempt.job_id).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 99 + b"\n" + b"y" * 5_000_000)
    async with socket_of(ada) as socket:
        await socket.ask(topic, 0)
        skipped = await socket.expect(topic, "skipped")
        chunk = await socket.expect(topic, "chunk")

    assert skipped["data"] == {"from": 0, "to": chunk["data"]["offset"]}
    assert len(chunk["data"]["text"]) <= 70_000


@pytest.mark.slow
async def test_changes_faster_than_a_reader_takes_them_are_merged(home, ada, write_readings, make_device):
    await sync_to_async(make_device)(0)
    write_readings("sim-0", seq=1)
    async with socket_of(ada) as socket:
        await socket.ask("devices")
        await socket.expect("devices", "snapshot")
        for seq in range(2, 40):
            write_readings("sim-0", seq=seq)
            feed.current().wake("devices")
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.6)
        count = socket.output_queue.qsize()
        newest = [json.loads((await socket.receive_output())["text"]) for _ in range(count)][-1]

    assert count <= 5  # 1.4 s at 2 Hz
    assert newest["type"] == "tick"


@pytest.mark.slow
async def test_an_unsubscribed_topic_is_silent(home, ada, make_job):
    job = await sync_to_async(make_job)()
    async with socket_of(ada) as socket:
        await socket.ask(f"job:{job.pk}")
        await socket.expect(f"job:{job.pk}", "snapshot")
        await socket.say(json.dumps({"op": "unsubscribe", "topic": f"job:{job.pk}"}))
        await sync_to_async(Job.objects.filter(pk=job.pk).update)(state=JobState.HELD, version=1)
        assert await socket.receive_nothing(timeout=1.5)


async def test_who_loses_the_right_to_read_is_let_go(home, root, make_job, monkeypatch):
    monkeypatch.setattr(feed, "RECHECK_EVERY_S", 0.2)
    job = await sync_to_async(make_job)()
    async with socket_of(root) as socket:
        await socket.ask(f"job:{job.pk}")
        await socket.expect(f"job:{job.pk}", "snapshot")
        root.is_active = False
        await sync_to_async(root.save)()
        assert await socket.closed_with() == consumers.SIGNED_OUT


async def test_a_revoked_token_ends_its_socket(home, ada, monkeypatch):
    monkeypatch.setattr(feed, "RECHECK_EVERY_S", 0.2)
    token, text = await sync_to_async(tokens.issue)(ada, name="cli")
    async with socket_of(origin=None, token=text) as socket:
        await socket.frame()
        await sync_to_async(tokens.revoke)(token)
        assert await socket.closed_with() == consumers.SIGNED_OUT


async def test_f89_who_takes_nothing_is_let_go_and_the_others_go_on(home, ada, write_readings, monkeypatch):
    monkeypatch.setattr(consumers, "STALLED_S", 0.2)
    write_readings("sim-0")
    slow = consumers.LiveConsumer()
    sent: list[int] = []

    async def never_taken(**_: object) -> None:
        await asyncio.Event().wait()

    async def close(code: int | None = None, reason: str | None = None) -> None:
        sent.append(code or 0)

    monkeypatch.setattr(slow, "send", never_taken)
    monkeypatch.setattr(slow, "close", close)
    slow._wake = asyncio.Event()
    slow._wake.set()
    slow._dirty, slow._subscriptions = set(), {}
    monkeypatch.setattr(frames, "PING_S", 0.05)
    await slow._send_batches()

    assert sent == [consumers.STALLED]


async def test_f34_a_redis_that_hangs_is_told_as_one_that_is_gone(home, ada, monkeypatch):
    monkeypatch.setattr(feed, "REDIS_ANSWERS_WITHIN_S", 0.1)
    home.redis.mkdir(parents=True, exist_ok=True)
    with closing(stdlib_socket.socket(stdlib_socket.AF_UNIX)) as hung:
        hung.bind(str(home.redis / "redis.sock"))
        hung.listen()  # the kernel takes connections, nobody answers them
        async with socket_of(ada) as socket:
            await socket.frame()
            for _ in range(100):
                if problems.redis_outage.since:
                    break
                await asyncio.sleep(0.05)
            said = await sync_to_async(problems.current)()
    assert [each["part"] for each in said] == ["readings", "redis"]


async def test_the_feed_ends_with_its_last_reader(home, ada):
    async with socket_of(ada) as socket:
        await socket.frame()
        running = feed.current()
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("feed ")]
    await asyncio.sleep(0)

    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("feed ")]
    assert running is feed.current()


class Idle:
    """A reader that subscribes to nothing."""

    pass_: passes.Pass
    language = "en"

    def mark(self, source: topics.Source) -> None: ...

    def expel(self) -> None: ...


@pytest.mark.parametrize("turns", range(6))
async def test_a_feed_ends_though_its_last_reader_leaves_while_it_wakes(home, turns):
    """``asyncio.wait_for`` of Python 3.11 drops a cancellation that comes as its wait ends."""
    waking, reader = feed.Feed(), Idle()
    waking.join(reader)
    await asyncio.sleep(0.1)  # until its tasks wait
    waking._wake.set()
    for _ in range(turns):
        await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE_S):
        await waking.leave(reader)


async def test_a_sender_that_fails_closes_its_socket_and_says_so_in_the_log(home, ada, monkeypatch, caplog):
    async def fail(source: topics.StateSource, after: int | None) -> frames.Batch:
        raise RuntimeError("a rule that nobody thought of")

    monkeypatch.setattr(topics.StateSource, "batch", fail)
    async with socket_of(ada) as socket:
        await socket.ask("health")

        assert await socket.closed_with() == consumers.FAILED

    assert "sender failed" in caplog.text
    assert "a rule that nobody thought of" in caplog.text
