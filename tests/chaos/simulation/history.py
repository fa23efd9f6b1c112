"""One history: random events, and what must hold after each."""

import threading
from collections.abc import Callable
from typing import Any

from tests.chaos.simulation.world import Died, World

EVENTS = 45
QUIET_TURNS = 600


class History:
    """One seed's events, and what must hold after each."""

    def __init__(self, world: World, user: Any) -> None:
        from orchestrator.agent.loop import Loop

        self.world, self.chance, self.user = world, world.chance, user
        self.new_loop = lambda: Loop(threading.Event())
        self.loop = self.new_loop()
        self.finals: dict[Any, str] = {}
        self.seen: tuple[int, tuple[tuple[bool, bool], ...]] | None = None

    def run(self, events: int = EVENTS) -> None:
        acts: list[tuple[int, Callable[[], None]]] = [
            (5, self.submit),
            (4, self.ask),
            (14, self.turn),
            (8, self.deliver),
            (6, self.supervisor_ends),
            (3, self.supervisor_obeys),
            (3, self.supervisor_dies),
            (2, self.supervisor_falls_silent),
            (8, self.time_passes),
            (2, self.queue_suffers),
            (1, self.machine_reboots),
            (1, self.clock_jumps),
            (2, self.agent_dies),
            (4, self.database_fails),
        ]
        self.submit()
        for _ in range(events):
            (act,) = self.chance.choices([act for _, act in acts], [weight for weight, _ in acts])
            self.step(act)
        self.settle()

    def step(self, act: Callable[[], None], *, look: bool = True) -> None:
        """One event; whoever acts may die of it, or find the database away."""
        from django.db import DatabaseError

        from orchestrator.exceptions import OrchestratorError

        self.world.history.append(act.__name__)
        try:
            act()
        except (Died, DatabaseError):
            self.loop.forget()
            self.loop = self.new_loop()
        except OrchestratorError:
            pass  # a refusal, with its sentence
        if look:
            fail, self.world.fail_next = self.world.fail_next, ""  # looking must not fail
            self.check()
            self.world.fail_next = fail

    # Events

    def submit(self) -> None:
        from orchestrator.jobs.submission import intake
        from orchestrator.spec.job_spec import JobSpec

        spec = {
            "gpus": self.chance.choice([1, 1, 2]),
            "gpu_memory_gib": self.chance.choice([None, None, 30]),
            "max_retries": self.chance.randint(0, 3),
            "grace_period_s": 5,
            "preemptible": self.chance.random() < 0.5,
            "source": {"text": "print('on')\n"},
        }
        intake.accept(self.user, JobSpec.model_validate(spec), idempotency_key=f"k{self.chance.random()}")

    def ask(self) -> None:
        from orchestrator.jobs import lifecycle
        from orchestrator.models import Job

        jobs = list(Job.objects.order_by("pk"))
        if jobs:
            act = self.chance.choice(["cancel", "hold", "release", "release", "preempt"])
            getattr(lifecycle, act)(self.chance.choice(jobs), by="ada")

    def turn(self) -> None:
        self.world.beat()
        self.loop.tick()

    def deliver(self) -> None:
        from orchestrator.agent import tasks

        if self.world.queue:
            name, arguments, named = self.world.queue.pop(self.chance.randrange(len(self.world.queue)))
            getattr(tasks, name.rpartition(".")[2])(*arguments, **named)

    def supervisor_ends(self) -> None:
        if living := self.world.living():
            kind = self.chance.choice(["ok", "ok", "user_error", "signal", "oom_cpu", "infra", "hang"])
            self.world.end(self.chance.choice(living), kind)

    def supervisor_obeys(self) -> None:
        from orchestrator.supervisor.protocol.records import read_record
        from orchestrator.supervisor.verdict.rules import KIND_OF_STOP

        for one in self.world.living():
            orders = sorted(one.folder.orders.glob("*.json"))
            if orders and not one.silent:
                reason = str((read_record(orders[-1]) or {}).get("reason"))
                self.world.end(one, self.chance.choice([KIND_OF_STOP.get(reason, "cancelled"), "ok"]))

    def supervisor_dies(self) -> None:
        if living := self.world.living():
            one = self.chance.choice(living)
            one.ranks = self.chance.random() < 0.5  # without a sandbox they stay
            self.world.release(one)

    def supervisor_falls_silent(self) -> None:
        for one in self.world.living():
            one.silent = not one.silent and self.chance.random() < 0.5

    def time_passes(self) -> None:
        self.world.elapsed_s += self.chance.choice([0.1, 1, 1, 3, 6, 20, 40, 400])
        self.world.beat()

    def queue_suffers(self) -> None:
        if self.chance.random() < 0.5:
            self.world.queue.clear()
        else:
            self.world.queue *= 2

    def machine_reboots(self) -> None:
        for one in self.world.supervised:
            one.ranks = False
            self.world.release(one)
        self.world.queue.clear()
        self.world.boot += "'"
        self.agent_dies()

    def clock_jumps(self) -> None:
        self.world.wall_offset_s += self.chance.choice([-3600, 3600, -10, 10])

    def agent_dies(self) -> None:
        self.loop.forget()
        self.loop = self.new_loop()

    def database_fails(self) -> None:
        """The next queries of whoever comes: it dies there, is refused, or its commit is reported as failed."""
        self.world.fail_next = self.chance.choice(["die", "refuse", "commit"])
        self.world.fail_after = self.chance.randint(1, 25)

    # What must hold

    def check(self) -> None:
        from orchestrator.models import FINAL_STATES, Job, Lease
        from tests.jobs.invariants import check_invariants

        if not self._has_changed():
            return
        check_invariants()
        held = {(str(lease.attempt.job_id), lease.attempt.number) for lease in self._leases(Lease)}
        for one in self.world.supervised:
            if one.ranks:
                assert (one.job, one.number) in held, f"I4: attempt {one.number} runs on devices it has not"
        for job in Job.objects.filter(state__in=FINAL_STATES):
            assert self.finals.setdefault(job.pk, job.state) == job.state, "I6: final is final"

    def _has_changed(self) -> bool:
        """Whether a row or a process is another than at the last look."""
        from django.db import connection

        connection.ensure_connection()
        processes = tuple((one.alive, one.ranks) for one in self.world.supervised)
        seen = (connection.connection.total_changes, processes)
        self.seen, before = seen, self.seen
        return seen != before

    @staticmethod
    def _leases(lease: Any) -> list[Any]:
        return list(lease.objects.active().select_related("attempt"))

    def settle(self) -> None:
        """No more faults: everything comes to its end, and nothing is left (I15)."""
        from orchestrator.models import Device, Health, Job, Lease, Outbox
        from tests.read_sentences import wait_sentence

        self.world.fail_next = ""
        for one in self.world.supervised:
            one.silent = False
        for job in Job.objects.filter(state="held"):
            self.step(lambda job=job: self._release(job))  # type: ignore[misc]  # bound now
        for turn in range(QUIET_TURNS):
            self.world.elapsed_s += 2
            self.step(self.turn, look=turn % 5 == 0)
            self.step(self.supervisor_obeys, look=False)
            self.step(self.supervisor_ends, look=False)
            if not Job.objects.unfinished().exists():
                break
        left = [f"{job} {job.state} {job.reason} {wait_sentence(job)}" for job in Job.objects.unfinished()]
        assert not left, f"I15: nobody acts for {left}"
        assert not Lease.objects.active().exists(), "I5: devices are held by nobody"
        assert not any(one.ranks or one.alive for one in self.world.supervised), "I11: processes are left"
        fenced = Device.objects.exclude(health=Health.OK)
        assert not fenced.exists(), f"fenced for ever: {[each.health_reason for each in fenced]}"
        self.step(self.turn)
        launches = Outbox.objects.open().filter(errand="launch")
        assert not launches.exists(), f"I12: {list(launches)}"

    def _release(self, job: Any) -> None:
        from orchestrator.jobs import lifecycle

        lifecycle.release(job, by="ada")
