"""Random lives of a small pool: after every event the decisions keep what they promise."""

from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.scheduler.core import (
    BackfillReservation,
    Decisions,
    Device,
    OwnerUsage,
    Policy,
    QueuedJob,
    RunningJob,
    State,
    decide,
)
from tests.scheduler.core.states import GIB, gpu

STEPS = 50
POLICIES = (Policy(), Policy.progress_aware(), replace(Policy.progress_aware(), quantum_restarts=10.0))
_KEPT = [
    "id",
    "owner",
    "pool",
    "gpus",
    "memory_bytes",
    "priority",
    "submitted",
    "time_limit_s",
    "ran_s",
    "attained_gpu_s",
    "progress_done",
    "progress_total",
    "step_s",
    "restart_cost_s",
    "preemptible",
]


class Life:
    """A pool of which nothing is known but its events; stops take a while, as real ones do."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - a test's dice, not a secret
        self.policy = POLICIES[seed % len(POLICIES)]
        self.now = 1_000_000.0
        self.devices = [
            gpu(index, node=f"node-{index // 4}") for index in range(self.random.choice((2, 4, 8)))
        ]
        self.queued: dict[str, QueuedJob] = {}
        self.running: dict[str, RunningJob] = {}
        self.reservations: tuple[BackfillReservation, ...] = ()
        self.submitted = 0

    def step(self) -> None:
        event = self.random.choice(
            (self.submit, self.submit, self.pass_time, self.end_one, self.end_stops, self.turn_device)
        )
        event()
        state = self.state()
        decisions = decide(state, self.policy)
        self.check(state, decisions)
        self.apply(decisions)

    def submit(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.submitted += 1
            reports = self.random.random() < 0.5
            job = QueuedJob(
                id=f"job-{self.submitted:03}",
                owner=self.random.choice("abc"),
                pool="default",
                gpus=self.random.choice((1, 1, 2, 4)),
                memory_bytes=self.random.choice((None, None, 10 * GIB, 50 * GIB)),
                priority=self.random.choice((50, 50, 50, 90)),
                submitted=self.now,
                time_limit_s=self.random.choice((None, 600.0, 7200.0)),
                progress_done=0.0 if reports else None,
                progress_total=self.random.uniform(10, 10_000) if reports else None,
                step_s=1.0 if reports else None,
                restart_cost_s=self.random.choice((None, 10.0, 300.0)),
                preemptible=self.random.random() < 0.8,
            )
            self.queued[job.id] = job

    def pass_time(self) -> None:
        seconds = self.random.choice((0.0, 1.0, 30.0, 200.0, 5000.0, -100.0))  # clocks jump back, too
        self.now += seconds
        for job in self.running.values():
            ran_s = max(0.0, seconds)
            self.running[job.id] = replace(
                job,
                ran_s=job.ran_s + ran_s,
                attained_gpu_s=job.attained_gpu_s + ran_s * job.gpus,
                progress_done=None if job.progress_done is None else job.progress_done + ran_s,
            )

    def end_one(self) -> None:
        if self.running:
            del self.running[self.random.choice(sorted(self.running))]

    def end_stops(self) -> None:
        for job in [job for job in self.running.values() if job.stopping]:
            del self.running[job.id]
            self.queued[job.id] = QueuedJob(**{name: getattr(job, name) for name in _KEPT})

    def turn_device(self) -> None:
        place = self.random.randrange(len(self.devices))
        health = self.random.choice(("ok", "ok", "faulty", "fenced"))
        state = self.random.choice(("enabled", "enabled", "draining"))
        foreign = self.random.choice((0, 0, 20 * GIB))
        # A foreign process takes only what is free.
        if any(
            share.device_id == self.devices[place].id for job in self.running.values() for share in job.shares
        ):
            foreign = self.devices[place].foreign_bytes
        self.devices[place] = replace(
            self.devices[place], health=health, admin_state=state, foreign_bytes=foreign, used_bytes=foreign
        )

    def state(self) -> State:
        return State(
            now=self.now,
            devices=tuple(self.devices),
            queued=tuple(self.queued.values()),
            running=tuple(self.running.values()),
            usage=(OwnerUsage(owner="a", max_devices=4), OwnerUsage(owner="b", max_running=3)),
            reservations=self.reservations,
        )

    def check(self, state: State, decisions: Decisions) -> None:
        devices = {device.id: device for device in self.devices}
        answered = [start.job_id for start in decisions.start] + [wait.job_id for wait in decisions.wait]
        assert sorted(answered) == sorted(self.queued)
        stopped = {each.job_id for each in decisions.preempt}
        assert not stopped & set(answered)
        assert all(self.running[id_].preemptible and not self.running[id_].stopping for id_ in stopped)
        claims = defaultdict(list)
        for job in self.running.values():
            for share in job.shares:
                claims[share.device_id].append(share.memory_bytes)
        for start in decisions.start:
            ids = [share.device_id for share in start.devices]
            assert len(set(ids)) == self.queued[start.job_id].gpus
            assert len({devices[id_].node for id_ in ids}) == 1
            assert all(devices[id_].offered for id_ in ids)
            for share in start.devices:
                claims[share.device_id].append(share.memory_bytes)
                self.check_device(devices[share.device_id], claims[share.device_id])
        self.check_owners(decisions)

    def check_device(self, device: Device, claims: list[int | None]) -> None:
        if None in claims:
            assert len(claims) == 1
            assert device.foreign_bytes <= self.policy.foreign_allowed_bytes
        else:
            assert sum(claim or 0 for claim in claims) + device.foreign_bytes <= device.total_bytes

    def check_owners(self, decisions: Decisions) -> None:
        started = [self.queued[start.job_id] for start in decisions.start]
        mine = [job for job in (*self.running.values(), *started) if job.owner == "a"]
        if any(job.owner == "a" for job in started):
            assert sum(job.gpus for job in mine) <= 4
        if any(job.owner == "b" for job in started):
            assert sum(job.owner == "b" for job in (*self.running.values(), *started)) <= 3

    def apply(self, decisions: Decisions) -> None:
        for start in decisions.start:
            job = self.queued.pop(start.job_id)
            facts = {name: getattr(job, name) for name in _KEPT}
            self.running[job.id] = RunningJob(**facts, shares=start.devices, started=self.now)
        for each in decisions.preempt:
            self.running[each.job_id] = replace(self.running[each.job_id], stopping=True)
        self.reservations = tuple(
            BackfillReservation(each.job_id, each.device_ids, self.now) for each in decisions.reserve
        )


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_two_thousand_lives_of_fifty_events_keep_every_promise(seed: int):
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
