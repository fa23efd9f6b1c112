"""Devices that are held and not used: their owner is told, and by the pool's rule the job is stopped."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.agent.watches.idle import IdleWatch
from orchestrator.devices.types import Reading
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import ExitKind, Job, JobState, Lease, Pool, StopReason
from orchestrator.spec.job_spec import GIB

START = datetime(2026, 11, 21, 8, tzinfo=UTC)


class Room:
    """An agent's watch over one job, with clocks that a test sets."""

    def __init__(self) -> None:
        self.watch, self.passed_s = IdleWatch(), 0.0

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    def show(self, *percent: float | None, for_s: float = 0.0, **fields) -> None:
        """Let the devices show this at every half minute of ``for_s``, one reading at least."""
        end_s = self.passed_s + for_s
        while True:
            leases = list(
                Lease.objects.active().select_related("attempt__job__pool", "attempt__job__owner", "device")
            )
            readings = [
                Reading(
                    device_id=f"sim-{index}",
                    taken_at=time.time(),
                    used_bytes=GIB,
                    total_bytes=80 * GIB,
                    utilization_percent=value,
                    **fields,
                )
                for index, value in enumerate(percent)
            ]
            self.watch.note(readings, leases, self.now, self.passed_s)
            if self.passed_s >= end_s:
                return
            self.passed_s += 30.0


@pytest.fixture
def room(db) -> Room:
    return Room()


@pytest.fixture
def job(make_attempt, make_device) -> Job:
    job: Job = make_attempt(state=JobState.RUNNING, devices=[make_device(0)]).job
    return job


@pytest.fixture
def rule(make_pool):
    def set_(**fields) -> None:
        make_pool()
        Pool.objects.update(**fields)

    return set_


@pytest.fixture
def session(make_job, make_attempt, make_device) -> Job:
    job: Job = make_attempt(
        make_job(spec={"kind": "session", "command": ["serve"]}),
        state=JobState.RUNNING,
        devices=[make_device(0)],
    ).job
    return job


def warnings(job: Job) -> list[str]:
    return [event.reason for event in job.events.filter(actor="idle watch")]


def test_the_owner_is_warned_once_after_the_pools_time(room, job, rule):
    rule(idle_after_s=600)

    room.show(0, for_s=570)
    assert warnings(job) == []
    room.show(0, for_s=3000)

    assert warnings(job) == ["Holds its devices and has not used them for 10 min."]
    job.refresh_from_db()
    assert (job.state, job.idle_since) == (JobState.RUNNING, START)


def test_the_warning_says_when_the_job_will_be_stopped(room, job, rule):
    rule(idle_after_s=600, idle_stop_after_s=3600)

    room.show(0, for_s=600)

    assert "It is stopped after 1 h of that." in warnings(job)[0]


def test_work_takes_the_warning_back(room, job, rule):
    rule(idle_after_s=600)
    room.show(0, for_s=600)

    room.show(50)

    job.refresh_from_db()
    assert job.idle_since is None
    room.show(0, for_s=630)
    assert len(warnings(job)) == 2


def test_the_pools_rule_stops_the_job_and_it_does_not_come_back(room, job, rule):
    rule(idle_after_s=600, idle_stop_after_s=1200)

    room.show(0, for_s=1200)

    job.refresh_from_db()
    assert (job.state, job.stop_reason) == (JobState.STOPPING, StopReason.POLICY)
    ended = lifecycle.end(
        job.attempts.get(), Ending(kind=ExitKind.CANCELLED, how=sentence_only("Stopped."), at=room.now)
    )
    assert (ended.state, ended.idle_since) == (JobState.CANCELLED, None)
    assert "did nothing for 20 min" in ended.reason


def test_replica_of_a_service_waits_for_requests_and_stays(room, rule, make_attempt, make_job, make_device):
    rule(idle_after_s=600, idle_stop_after_s=1200)
    spec = {"kind": "service", "command": ["serve"]}
    job = make_attempt(make_job(spec=spec), state=JobState.RUNNING, devices=[make_device(0)]).job

    room.show(0, for_s=7200)

    job.refresh_from_db()
    assert (job.state, job.idle_since, warnings(job)) == (JobState.RUNNING, None, [])
    assert Lease.objects.get().idle_s > 7000, "the page of usage has it all the same"


@pytest.mark.parametrize("never", [None, 0])
def test_a_pool_may_neither_warn_nor_stop(never, room, job, rule):
    rule(idle_after_s=never, idle_stop_after_s=never)

    room.show(0, for_s=7200)

    job.refresh_from_db()
    assert (job.state, job.idle_since, warnings(job)) == (JobState.RUNNING, None, [])


def test_a_gang_of_which_one_device_works_is_at_work(room, make_attempt, make_device, rule):
    rule(idle_after_s=600, idle_stop_after_s=600)
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(0), make_device(1)], gpus=2)

    room.show(90, 0, for_s=1200)

    attempt.job.refresh_from_db()
    assert attempt.job.state == JobState.RUNNING
    assert list(Lease.objects.order_by("rank").values_list("idle_s", flat=True)) == [0, 1200]


def test_a_device_that_shows_no_utilization_is_taken_to_work(room, job, rule):
    rule(idle_after_s=600, idle_stop_after_s=600)

    room.show(None, for_s=1200)

    job.refresh_from_db()
    assert job.state == JobState.RUNNING


def test_stale_readings_neither_warn_nor_clear(room, job, rule):
    rule(idle_after_s=600)

    room.show(0, for_s=1200, stale=True)

    assert warnings(job) == []


def test_pauses_of_a_minute_are_training_and_longer_ones_are_counted(room, job):
    room.show(0, for_s=30)
    room.show(80, for_s=300)
    assert Lease.objects.get().idle_s == 0

    room.show(0, for_s=330)

    # The half minute before the first idle reading is not known to be idle.
    assert Lease.objects.get().idle_s == pytest.approx(300, abs=30)


def test_a_restart_of_the_agent_goes_on_counting(room, job, rule):
    rule(idle_after_s=600, idle_stop_after_s=1200)
    room.show(0, for_s=600)

    room.watch = IdleWatch()
    room.show(0, for_s=600)

    job.refresh_from_db()
    assert (job.state, len(warnings(job))) == (JobState.STOPPING, 1)


def test_a_job_that_only_starts_is_not_judged(room, make_attempt, make_device, rule):
    rule(idle_after_s=60)
    attempt = make_attempt(state=JobState.STARTING, devices=[make_device(0)])

    room.show(0, for_s=600)

    assert warnings(attempt.job) == []


def idle_for(room: Room, passed_s: float) -> None:
    """The looks at the session found nothing; the devices show nothing for so long."""
    attempts = {lease.attempt_id for lease in Lease.objects.active()}
    room.watch.sessions._found = dict.fromkeys(attempts)  # what a look finds in an idle session
    room.watch.sessions._looked_at = float("inf")
    room.show(0, for_s=passed_s)


def test_session_is_warned_of_what_it_will_lose(room, session, rule):
    rule(idle_after_s=600, idle_stop_after_s=3600)

    idle_for(room, 600)

    assert warnings(session) == [
        "Has done nothing for 10 min. After 1 h of that it gives its devices back: files stay, variables in memory are lost."
    ]


def test_idle_session_goes_to_sleep_and_keeps_its_place(room, session, rule):
    rule(idle_after_s=600, idle_stop_after_s=1200, session_end_after_s=2 * 86400)

    idle_for(room, 1200)

    session.refresh_from_db()
    assert (session.state, session.stop_reason) == (JobState.STOPPING, StopReason.PREEMPT)
    ended = lifecycle.end(
        session.attempts.get(), Ending(kind=ExitKind.PREEMPTED, how=sentence_only("Stopped."), at=room.now)
    )
    assert ended.state == JobState.HELD
    assert ended.reason == (
        "Did nothing for 20 min and gave its devices back, as pool default asks. Its files are kept for 2 d; wake it to go on."
    )
    assert not Lease.objects.active().exists()


def test_work_of_a_neighbour_on_the_same_device_is_no_work_of_a_session(
    room, make_job, make_attempt, make_device, rule
):
    rule(idle_after_s=600, idle_stop_after_s=1200)
    shared, own = make_device(0), make_device(1)
    spec = {"kind": "session", "command": ["serve"]}
    beside, alone = (
        make_attempt(make_job(spec=spec), state=JobState.RUNNING, devices=[device], memory_bytes=GIB).job
        for device in (shared, own)
    )
    make_attempt(state=JobState.RUNNING, devices=[shared], memory_bytes=GIB)
    attempts = {lease.attempt_id for lease in Lease.objects.active()}
    room.watch.sessions._found = dict.fromkeys(attempts)
    room.watch.sessions._looked_at = float("inf")

    room.show(90, 90, for_s=1200)

    states = [Job.objects.get(pk=job.pk).state for job in (beside, alone)]
    assert states == [JobState.STOPPING, JobState.RUNNING]
