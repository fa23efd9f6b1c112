"""Requests wait in turn, and are refused at once where their answer would come too late."""

import asyncio
from collections.abc import Callable

import pytest

from orchestrator.services.line import LEAST_KNOWN, Full, Late, Line
from orchestrator.services.traffic import Traffic

SOON = 1000.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_line(clock: Clock) -> Callable[..., Line[str]]:
    """A line of one replica whose answers take a tenth of a second."""

    def make(
        replicas: int = 1, *, known: bool = True, parallel: int = 1, most_waiting: int = 100
    ) -> Line[str]:
        line: Line[str] = Line(parallel, most_waiting, clock)
        line.set_replicas([f"r{index}" for index in range(replicas)])
        for _ in range(LEAST_KNOWN if known else 0):
            line.busy["r0"] += 1
            line.done("r0", 0.1)
        return line

    return make


async def waits(task: asyncio.Task[str]) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


async def test_a_free_replica_answers_at_once_and_others_wait_in_turn(make_line, clock):
    line = make_line()
    assert await line.turn(clock.now + SOON) == "r0"
    second = asyncio.create_task(line.turn(clock.now + SOON))
    third = asyncio.create_task(line.turn(clock.now + SOON))
    assert await waits(second)

    line.done("r0", 0.1)
    assert await second == "r0"
    assert await waits(third)
    line.done("r0", 0.1)
    assert await third == "r0"


async def test_the_replica_that_serves_least_comes_next(make_line, clock):
    line = make_line(replicas=2, parallel=2)

    assert [await line.turn(clock.now + SOON) for _ in range(4)] == ["r0", "r1", "r0", "r1"]


async def test_a_request_that_cannot_be_in_time_is_refused_when_it_comes(make_line, clock):
    line = make_line()
    await line.turn(clock.now + SOON)
    waiting = [asyncio.create_task(line.turn(clock.now + SOON)) for _ in range(4)]
    assert await waits(waiting[-1])

    with pytest.raises(Late) as refused:
        await line.turn(clock.now + 0.5)  # five before it, a tenth of a second each

    assert refused.value.wait_s == pytest.approx(0.5)
    assert refused.value.retry_s == 1
    assert line.waiting == 4
    for task in waiting:
        task.cancel()


async def test_a_request_is_in_time_when_what_is_served_ends_soon(make_line, clock):
    line = make_line()
    await line.turn(clock.now + SOON)
    with pytest.raises(Late):
        await line.turn(clock.now + 0.15)

    clock.now += 0.09
    turn = asyncio.create_task(line.turn(clock.now + 0.15))
    assert await waits(turn)
    line.done("r0", 0.1)
    assert await turn == "r0"


async def test_nothing_is_refused_while_nothing_is_known(make_line, clock):
    line = make_line(known=False)
    await line.turn(clock.now + SOON)

    turn = asyncio.create_task(line.turn(clock.now + 0.01))

    with pytest.raises(Late):
        await turn  # it waited as long as it may


async def test_a_line_that_is_full_refuses(make_line, clock):
    line = make_line(known=False, most_waiting=1)
    await line.turn(clock.now + SOON)
    first = asyncio.create_task(line.turn(clock.now + SOON))
    assert await waits(first)

    with pytest.raises(Full):
        await line.turn(clock.now + SOON)
    first.cancel()


async def test_who_became_late_in_the_line_is_told_so_and_the_next_is_served(make_line, clock):
    line = make_line()
    await line.turn(clock.now + SOON)
    late = asyncio.create_task(line.turn(clock.now + 0.5))
    next_one = asyncio.create_task(line.turn(clock.now + SOON))
    assert await waits(late)

    clock.now += 0.45
    line.done("r0", 0.1)

    with pytest.raises(Late):
        await late
    assert await next_one == "r0"


async def test_who_left_holds_no_place(make_line, clock):
    line = make_line(known=False)
    await line.turn(clock.now + SOON)
    gone = asyncio.create_task(line.turn(clock.now + SOON))
    assert await waits(gone)
    line.done("r0", 0.1)  # its turn, in the moment in which it leaves
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)

    async with asyncio.timeout(10):
        assert await line.turn(clock.now + SOON) == "r0"


async def test_requests_wait_for_the_first_replica(make_line, clock):
    line = make_line(replicas=0, known=False)
    turn = asyncio.create_task(line.turn(clock.now + SOON))
    assert await waits(turn)

    line.set_replicas(["new"])

    assert await turn == "new"


def test_traffic_of_the_last_minute_is_counted_by_outcome(clock):
    traffic = Traffic(clock)
    traffic.count(200, 5.0)
    clock.now += 61
    for index in range(98):
        traffic.count(200, 0.001 * (index + 1))
    for status in (429, 504, 502, 404):
        traffic.count(status, 9.0)

    told = traffic.as_json()

    assert told == {
        "requests_per_s": pytest.approx(102 / 60, abs=1e-3),
        "p50_ms": 50.0,
        "p99_ms": 98.0,
        "errors": 1,
        "refused": 1,
        "late": 1,
    }
