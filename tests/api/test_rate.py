"""One person's flood of requests is slowed down, and nobody else's."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_client

from orchestrator.api.http import rate
from orchestrator.exceptions import TooMany
from orchestrator.server.environment import read_environment
from orchestrator.server.operation.services import redis_command
from tests.waiting import PATIENCE_S


class Alone(rate.Counts):
    """Redis is away."""

    def add(self, user_id: int | str, count: int) -> int | None:
        return None


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory) -> Iterator[str]:
    """A Redis of this module's own."""
    home: Path = tmp_path_factory.mktemp("redis")
    environment = read_environment({"BERTH_HOME": str(home)})
    with subprocess.Popen(redis_command(environment), stdout=subprocess.DEVNULL) as server:
        client = redis_client.Redis.from_url(environment.redis_url)
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                client.ping()
                break
            except redis_client.ConnectionError:
                time.sleep(0.02)
        yield environment.redis_url
        client.close()
        server.terminate()


@pytest.fixture
def make_process(redis_url) -> Callable[[Callable[[], float]], rate.Rate]:
    """What one web process counts with."""
    return lambda clock: rate.Rate(clock, rate.Counts(clock, redis_url))


def test_a_bucket_empties_and_fills_for_each_person_alone():
    now = 100.0
    counted = rate.Rate(lambda: now, Alone())
    for _ in range(int(rate.BURST)):
        counted.take(1)
    with pytest.raises(TooMany) as error:
        counted.take(1)
    assert error.value.retry_after_s == 1.0
    counted.take(2)

    now += 0.01

    for _ in range(int(rate.A_SECOND * 0.01)):
        counted.take(1)
    with pytest.raises(TooMany):
        counted.take(1)


def test_t23_a_flood_over_rest_is_429_with_a_time_to_wait(monkeypatch, client_of, ada, bob):
    strict = rate.Rate(counts=Alone(), a_second=0.001, burst=3.0)
    monkeypatch.setattr("orchestrator.api.http.authentication.rate.requests", strict)
    client = client_of(ada)

    answers = [client.send("GET", "/jobs") for _ in range(4)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[3]["Retry-After"] == "1"
    assert client_of(bob).send("GET", "/jobs").status_code == 200


def take_until_refused(process: rate.Rate, user_id: int, most: int) -> int:
    for count in range(most):
        try:
            process.take(user_id)
        except TooMany:
            return count
    return most


def test_t23_two_web_processes_count_one_person_together(make_process):
    now = 100.0
    first, second = make_process(lambda: now), make_process(lambda: now)
    first.take(7)
    second.take(7)
    now += 1.1  # both have told of themselves
    first.take(7)
    second.take(7)

    here = take_until_refused(first, 7, 10_000)
    now += 1.1  # another second of the pace
    there = take_until_refused(second, 7, 10_000)

    assert here == pytest.approx(rate.BURST, abs=5)
    assert there <= 1.1 * rate.A_SECOND + 2 * rate.SHARE_EVERY, "not another burst"
    now += 2
    assert take_until_refused(second, 7, 10_000) == pytest.approx(2 * rate.A_SECOND, abs=2 * rate.SHARE_EVERY)
    assert take_until_refused(first, 8, 10) == 10, "another person has a bucket of their own"


def test_a_redis_that_forgets_takes_no_requests_from_anybody(make_process, redis_url):
    now = 100.0
    process = make_process(lambda: now)
    for _ in range(200):
        process.take(9)
    with redis_client.Redis.from_url(redis_url) as client:
        client.flushall()
    now += 10

    assert take_until_refused(process, 9, 10_000) == pytest.approx(rate.BURST, abs=5)


def test_f34_a_redis_that_is_away_is_asked_seldom_and_costs_no_request(tmp_path):
    now = 100.0
    counts = rate.Counts(lambda: now, f"unix://{tmp_path}/none.sock")
    process = rate.Rate(lambda: now, counts)
    began = time.thread_time()

    taken = take_until_refused(process, 1, 10_000)

    assert taken == int(rate.BURST)
    assert time.thread_time() - began < 2
    assert counts.add(1, 1) is None
