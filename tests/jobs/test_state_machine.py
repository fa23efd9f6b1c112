"""Random lives of jobs: after every step the invariants of docs/reliability.md, 4.3, hold."""

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import ClassVar

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending, IllegalTransition, StaleJob
from orchestrator.models import (
    FINAL_STATES,
    AdminState,
    Attempt,
    AttemptState,
    Device,
    ExitKind,
    Job,
    JobState,
    Pool,
    StopReason,
)
from orchestrator.scheduler import passes
from orchestrator.spec.job_spec import GIB
from tests.jobs.invariants import check_invariants

INDEX = st.integers(0, 30)
LIVES = int(os.environ.get("BERTH_LIVES", "25"))  # of the long ones; by hand, hundreds


class Lives(RuleBasedStateMachine):
    """People, the scheduler, launchers and supervisors act on a few jobs in any order."""

    make_job: ClassVar[Callable[..., Job]]

    def __init__(self) -> None:
        super().__init__()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        pool = Pool.objects.get_or_create(name="default")[0]
        for index in range(3):
            Device.objects.create(
                id=f"sim-{index}", index=index, pool=pool, kind="sim", name="Sim", memory_bytes=80 * GIB
            )
        self.now: datetime = timezone.now()
        self.finals: dict[object, str] = {}
        self.seen: list[Job] = []  # rows as somebody read them a while ago
        for gpus, gib in ((1, None), (2, 50), (1, 20)):
            self.submit_one(gpus, gib, 1)
        passes.run_pass(self.now)

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.atomic.__exit__(None, None, None)

    def job(self, index: int) -> Job:
        jobs = list(Job.objects.order_by("pk"))
        return jobs[index % len(jobs)]

    def live(self, index: int) -> Attempt | None:
        attempts = list(Attempt.objects.live().order_by("pk"))
        return attempts[index % len(attempts)] if attempts else None

    @rule(gpus=st.integers(1, 3), gib=st.sampled_from([None, 20, 50, 80]), retries=st.integers(0, 2))
    def submit(self, gpus: int, gib: int | None, retries: int) -> None:
        self.submit_one(gpus, gib, retries)

    def submit_one(self, gpus: int, gib: int | None, retries: int) -> None:
        spec = {"gpus": gpus, "gpu_memory_gib": gib, "max_retries": retries}
        type(self).make_job(spec=spec, submitted_at=self.now, queued_at=self.now)

    @precondition(lambda self: Job.objects.exists())
    @rule(index=INDEX, act=st.sampled_from(["cancel", "hold", "release", "preempt", "shut_down"]))
    def ask(self, index: int, act: str) -> None:
        job = self.job(index)
        before = job.state
        try:
            getattr(lifecycle, act)(job, by="ada")
        except IllegalTransition:
            assert Job.objects.get(pk=job.pk).state == before

    @precondition(lambda self: Job.objects.exists())
    @rule(index=INDEX)
    def look(self, index: int) -> None:
        self.seen.append(self.job(index))

    @precondition(lambda self: self.seen)
    @rule(index=INDEX, to=st.sampled_from(sorted(JobState)), text=st.text(max_size=5))
    def act_on_what_was_seen(self, index: int, to: JobState, text: str) -> None:
        """A process that was paused: a row that moved on since refuses it."""
        old = self.seen.pop(index % len(self.seen))
        moved_on = Job.objects.get(pk=old.pk).version != old.version
        if not moved_on:
            lifecycle.remark(old, sentence_only(text), actor="late")
            return
        with pytest.raises((StaleJob, IllegalTransition)):
            lifecycle.move(old, to, actor="late")

    @rule()
    def place(self) -> None:
        passes.run_pass(self.now)

    @rule(index=INDEX)
    def launch(self, index: int) -> None:
        if attempt := self.live(index):
            lifecycle.claim_launch(attempt, self.now)

    @rule(index=INDEX)
    def run(self, index: int) -> None:
        attempt = self.live(index)
        if attempt and attempt.state != AttemptState.CREATED:
            lifecycle.run(attempt, started_at=self.now)

    @rule(index=INDEX, reason=st.sampled_from(sorted(StopReason)))
    def stop(self, index: int, reason: StopReason) -> None:
        if attempt := self.live(index):
            job = Job.objects.get(pk=attempt.job_id)
            lifecycle.want_stop(job, reason, actor="timer", why=sentence_only("Stop."))

    @rule(index=INDEX, kind=st.sampled_from(sorted(ExitKind)), progressed=st.booleans(), again=st.booleans())
    def end(self, index: int, kind: ExitKind, progressed: bool, again: bool) -> None:
        if attempt := self.live(index):
            ending = Ending(
                kind=kind, how=sentence_only("Ended."), at=self.now, run_s=1, progressed=progressed
            )
            job = lifecycle.end(attempt, ending)
            if again:  # a message that came twice
                assert lifecycle.end(attempt, ending).event_count == job.event_count

    @rule(index=INDEX, back=st.booleans())
    def fall_silent(self, index: int, back: bool) -> None:
        if attempt := self.live(index):
            lifecycle.lose_sight(attempt, why=sentence_only("Silent."))
            if back:
                lifecycle.regain_sight(attempt)

    @rule()
    def wait_is_over(self) -> None:
        self.now += timedelta(minutes=6)
        for job in Job.objects.filter(state=JobState.BACKOFF, next_try_at__lte=self.now):
            lifecycle.back_to_queue(job, now=self.now)

    @rule(index=INDEX, state=st.sampled_from(sorted(AdminState)))
    def administer(self, index: int, state: AdminState) -> None:
        Device.objects.filter(index=index % 3).update(admin_state=state)

    @invariant()
    def invariants_hold(self) -> None:
        check_invariants()
        for job in Job.objects.all():
            if job.pk in self.finals:
                assert job.state == self.finals[job.pk], "I6: final is final"
            elif job.state in FINAL_STATES:
                self.finals[job.pk] = job.state
            assert job.failures <= job.spec_fields["max_retries"], "I9: more retries than allowed"
            if job.state in FINAL_STATES:
                assert job.ended_at is not None
            if job.state == JobState.BACKOFF:
                assert job.next_try_at is not None, "I15: nobody would wake it"


@pytest.mark.parametrize(
    ("examples", "steps"),
    [(3, 20), pytest.param(LIVES, 40, marks=[pytest.mark.slow, pytest.mark.timeout(600 + 20 * LIVES)])],
)
def test_the_invariants_hold_in_random_lives(make_job, ada: User, home, examples: int, steps: int):
    class Machine(Lives):
        pass

    Machine.make_job = staticmethod(make_job)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
