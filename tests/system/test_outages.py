"""Outages of parts that jobs do not need to go on: one server, one fault after the other."""

import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from tests.system.server import Prepared, Server, kill
from tests.system.trainings import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outage(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of four CPU slots that the tests of this module hurt and leave whole."""
    with Server.copy_of(prepared, tmp_path_factory.mktemp("outage") / "berth", "cpu:4").running() as server:
        yield server


def test_f29_readings_are_shown_as_old_while_the_agent_is_away(outage: Server) -> None:
    agent = outage.service("agent")
    kill(agent, signal.SIGSTOP)
    time.sleep(4)
    devices = outage.get("/devices")["results"]
    kill(agent, signal.SIGCONT)

    assert all(device["reading"]["stale"] for device in devices)
    outage.wait_until(lambda: not any(each["reading"]["stale"] for each in outage.get("/devices")["results"]))


def test_f35_jobs_are_taken_and_trained_while_redis_is_away(outage: Server) -> None:
    running = train(outage, 200)
    outage.wait_for_line(running, "step 20 ")
    kill(outage.service("redis"), signal.SIGSTOP)

    taken = outage.submit("print('on')\n")
    ended = [outage.wait_for_end(job) for job in (running, taken)]
    kill(outage.service("redis"), signal.SIGCONT)

    assert [each["state"] for each in ended] == ["succeeded"] * 2
    assert outage.get(f"/jobs/{running}/metrics?names=loss")["series"]["loss"]["total"] == 200


def test_f36_jobs_start_while_redis_has_no_memory_left(outage: Server) -> None:
    with redis.Redis(unix_socket_path=str(outage.home / "redis" / "redis.sock")) as client:
        client.config_set("maxmemory", "1")
        try:
            ended = outage.wait_for_end(outage.submit("print('on')\n"))
        finally:
            client.config_set("maxmemory", "256mb")

    assert ended["state"] == "succeeded"


def test_f44_submits_get_503_while_the_database_is_locked_and_nothing_is_lost(outage: Server) -> None:
    running = train(outage, 200)
    outage.wait_for_line(running, "step 20 ")
    with closing(sqlite3.connect(outage.home / "db.sqlite3", timeout=20)) as database:
        database.execute("BEGIN IMMEDIATE")
        status, answer = outage.call("POST", "/jobs", {"source": {"text": "print('on')\n"}}, key="f44")
        listed, _ = outage.call("GET", "/jobs")
        time.sleep(2)
        database.rollback()
    job = outage.post("/jobs", {"source": {"text": "print('on')\n"}}, key="f44")

    assert (status, answer["code"], listed) == (503, "unavailable", 200)
    assert outage.wait_for_end(job["id"])["state"] == "succeeded"
    ended = outage.wait_for_end(running)
    assert (ended["state"], ended["attempt_count"], ended["progress"]["step"]) == ("succeeded", 1, 200)


def test_f72_what_the_kernel_kills_first_is_a_job(outage: Server) -> None:
    job = outage.submit("import time\nprint('on', flush=True)\ntime.sleep(60)\n", grace_period_s=1)
    outage.wait_for_line(job, "on")
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in outage.ranks(job)]
    ours = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in outage.service("web")]
    outage.post(f"/jobs/{job}/cancel")
    outage.wait_for_end(job)

    assert min(scores) > max(ours)
