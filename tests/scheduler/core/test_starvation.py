"""A job for the whole server starts, whatever stream of small jobs flows past it."""

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random

import pytest

from orchestrator.scheduler.core import BackfillReservation, QueuedJob, RunningJob, Start, State, decide
from tests.scheduler.core.states import gpus, queued

HOUR_S = 3600.0


@dataclass(frozen=True)
class Kind:
    """What the small jobs of a stream tell about their length, which is up to an hour."""

    limited: float  # fraction with a time limit
    reporting: float  # fraction that report progress
    wrong_by: float = 1.0  # factor of their reports


class Server:
    """Runs jobs for their true lengths, as the decisions say."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.devices = tuple(replace(device, node=f"node-{device.index // 8}") for device in gpus(8 * nodes))
        self.now = 0.0
        self.queue: dict[str, QueuedJob] = {}
        self.active: dict[str, RunningJob] = {}
        self.length_s: dict[str, float] = {}
        self.ends: list[tuple[float, str]] = []
        self.reservations: tuple[BackfillReservation, ...] = ()
        self.random = Random(seed)  # noqa: S311 - a simulation, not a secret
        self.started: dict[str, float] = {}

    def submit_small(self, kind: Kind, number: int) -> None:
        length_s = self.random.uniform(60, HOUR_S)
        reports = self.random.random() < kind.reporting
        job = queued(
            f"small-{number}",
            submitted=self.now,
            time_limit_s=length_s if self.random.random() < kind.limited else None,
            grace_s=0.0,
            progress_done=0.0 if reports else None,
            progress_total=length_s * kind.wrong_by if reports else None,
            step_s=1.0 if reports else None,
        )
        self.queue[job.id], self.length_s[job.id] = job, length_s

    def step(self) -> None:
        """One pass, then on to the next end of a job."""
        decisions = decide(self.snapshot())
        for start in decisions.start:
            self._start(start)
        self.reservations = tuple(
            BackfillReservation(reserve.job_id, reserve.device_ids, self.now) for reserve in decisions.reserve
        )
        self.now, ended = heappop(self.ends)
        del self.active[ended]

    def snapshot(self) -> State:
        return State(
            now=self.now,
            devices=self.devices,
            queued=tuple(self.queue.values()),
            running=tuple(self._as_of_now(job) for job in self.active.values()),
            reservations=self.reservations,
        )

    def _as_of_now(self, job: RunningJob) -> RunningJob:
        ran_s = self.now - job.started
        if job.progress_done is None:
            return replace(job, ran_s=ran_s)
        return replace(job, ran_s=ran_s, progress_done=ran_s)

    def _start(self, start: Start) -> None:
        job = self.queue.pop(start.job_id)
        facts = {name: getattr(job, name) for name in ("id", "name", "owner", "pool", "gpus", "submitted")}
        known = ("time_limit_s", "grace_s", "progress_done", "progress_total", "step_s")
        facts |= {name: getattr(job, name) for name in known}
        self.active[job.id] = RunningJob(**facts, shares=start.devices, started=self.now)
        self.started[job.id] = self.now
        heappush(self.ends, (self.now + self.length_s[job.id], job.id))


STREAMS = {
    "unknown lengths": Kind(limited=0, reporting=0),
    "time limits": Kind(limited=1, reporting=0),
    "half of them limited": Kind(limited=0.5, reporting=0),
    "limits and honest progress": Kind(limited=0.5, reporting=0.5),
    "limits and progress that says three times too much": Kind(limited=0.5, reporting=0.5, wrong_by=3),
    "limits and progress that says a third": Kind(limited=0.5, reporting=0.5, wrong_by=1 / 3),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_job_for_the_whole_server_starts_within_the_bound(stream: Kind, nodes: int, seed: int):
    """Those that run when it becomes the head end within an hour, those filled in meanwhile within another."""
    server = Server(nodes, seed)
    number = 0
    while "id-big" not in server.started:
        while len(server.queue) < 12:  # there are always small jobs that wait
            server.submit_small(stream, number)
            number += 1
        if server.now > 2 * HOUR_S and not any(job.gpus == 8 for job in server.queue.values()):
            big = queued("big", gpus=8, submitted=server.now)
            server.queue[big.id], server.length_s[big.id] = big, HOUR_S
            ahead_s = HOUR_S  # the twelve in front of it start first
            bound = server.now + ahead_s + 2 * HOUR_S
        server.step()
        assert server.now < 20 * HOUR_S, "the big job starves"

    assert server.started["id-big"] <= bound


def test_a_caller_that_forgets_the_reservation_does_not_starve_the_head():
    server = Server(nodes=2, seed=3)
    for number in range(40):
        server.submit_small(STREAMS["unknown lengths"], number)
    server.step()
    server.queue["id-big"] = queued("big", gpus=8, priority=60)
    server.length_s["id-big"] = HOUR_S

    while "id-big" not in server.started and server.queue:
        server.reservations = ()
        server.step()

    assert server.started["id-big"] <= HOUR_S


def test_jobs_of_one_hour_keep_the_promised_latest_start():
    server = Server(nodes=1, seed=4)
    for number in range(60):
        server.submit_small(STREAMS["time limits"], number)
    server.step()
    server.queue["id-big"] = queued("big", gpus=8, priority=60)
    server.length_s["id-big"] = HOUR_S
    promised = next(w.start_latest for w in decide(server.snapshot()).wait if w.job_id == "id-big")

    while "id-big" not in server.started:
        server.step()

    assert promised is not None
    assert server.started["id-big"] <= promised + 1e-6
