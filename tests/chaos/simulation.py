"""Whole histories of a server in one thread: one seed, one history.

The code under test is the real one: submission, lifecycle, placement, launcher, the agent's loop and sweeps, on a
real database and real attempt folders.  What surrounds it is ours to bend: the clock, the table of processes, the
queue of wake-ups, supervisors, and whether a process or the database fails at a query.

python -m tests.chaos.simulation --histories 10000 [--seed 0]
"""

import argparse
import fcntl
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

EVENTS = 45
QUIET_TURNS = 600
REAL_MONOTONIC, REAL_TIME = time.monotonic, time.time
START = datetime(2026, 1, 1, tzinfo=UTC)


class Died(BaseException):
    """The process that acts is gone: nothing of it runs any more, not even its handlers."""


@dataclass
class Supervised:
    """A supervisor and its ranks, as the rest of the world sees them."""

    folder: Any
    nonce: str
    job: str
    number: int
    lock: int
    alive: bool = True  # the supervisor
    ranks: bool = True  # its processes
    silent: bool = False


@dataclass
class World:
    """Everything around the code under test."""

    chance: random.Random
    home: Any
    elapsed_s: float = 0.0
    wall_offset_s: float = 0.0
    boot: str = "boot-0"
    queue: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    supervised: list[Supervised] = field(default_factory=list)
    fail_next: str = ""  # "die", "refuse", "commit": what the next queries meet
    fail_after: int = 0
    history: list[str] = field(default_factory=list)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed_s + self.wall_offset_s)

    # What launcher and agent see of processes

    def spawn(self, folder: Any, *, python: str, secrets: Any) -> int:
        from orchestrator.supervisor.records import read_record, write_record
        from orchestrator.supervisor.spawn import SpawnFailed

        if self.chance.random() < 0.05:
            raise SpawnFailed("No supervisor showed itself.")
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return 1
        if folder.supervisor.exists() or folder.exit.exists():
            os.close(lock)
            return 1
        launch = read_record(folder.launch) or {}
        one = Supervised(
            folder, str(launch["nonce"]), str(launch["job_id"]), int(str(launch["number"])), lock
        )
        running = [each for each in self.supervised if each.job == one.job and (each.alive or each.ranks)]
        assert not running, f"I2: attempt {one.number} starts beside {[each.number for each in running]}"
        self.supervised.append(one)
        identity = {"boot_id": self.boot, "pid": 2**22 - 1, "start_ticks": 1, "nonce": one.nonce}
        write_record(folder.supervisor, {**identity, "number": one.number})
        self.beat()
        return 1

    def with_nonce(self, nonce: str) -> list[int]:
        return [index + 1 for index, one in enumerate(self.supervised) if one.nonce == nonce and one.ranks]

    def send_signal(self, process: Any, number: int) -> bool:
        self.supervised[process.pid - 1].ranks = False
        return True

    def identify(self, pid: int) -> Any:
        from orchestrator.supervisor.processes import ProcessId

        return ProcessId(self.boot, pid, 1) if self.supervised[pid - 1].ranks else None

    def beat(self) -> None:
        for one in self.supervised:
            if one.alive and not one.silent:
                one.folder.heartbeat.write_bytes(b"%020d\n" % int(self.elapsed_s * 1e9))

    def end(self, one: Supervised, kind: str) -> None:
        from orchestrator.supervisor.records import write_record

        record = {"number": one.number, "nonce": one.nonce, "kind": kind, "detail": "Ended.", "run_s": 3.0}
        write_record(one.folder.exit, {**record, "ranks": [{"rank": 0, "finished": kind == "ok"}]})
        one.ranks = False
        self.release(one)

    def release(self, one: Supervised) -> None:
        if one.alive:
            one.alive = False
            os.close(one.lock)

    def living(self) -> list[Supervised]:
        return [one for one in self.supervised if one.alive]

    # What the database does

    def on_query(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        from django.db import OperationalError

        if self.fail_next in {"die", "refuse"}:
            self.fail_after -= 1
            if self.fail_after <= 0:
                what, self.fail_next = self.fail_next, ""
                raise Died if what == "die" else OperationalError("database is locked")
        return execute(sql, params, many, context)

    def on_commit(self, commit: Callable[[], None]) -> None:
        """Executed, then reported as failed (F43)."""
        from django.db import OperationalError

        commit()
        if self.fail_next == "commit":
            self.fail_after -= 1
            if self.fail_after <= 0:
                self.fail_next = ""
                raise OperationalError("the connection broke")


class Keeper:
    """Stands for the thread that copies checkpoints: an attempt made progress or not, as chance has it."""

    chance = random.Random(0)  # noqa: S311  # a history, not a secret

    def __init__(self, attempt: Any) -> None:
        self.has_saved = False

    def begin(self) -> None: ...

    def stop(self) -> None: ...

    def saved_since(self, *_: Any) -> bool:
        return False

    def finish(self, *, clean: bool, run_s: float) -> bool | None:
        return self.chance.random() < 0.5


class AtOnce:
    """A thread that has run when it was started."""

    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
        self._run = lambda: target(*args)

    def start(self) -> None:
        self._run()

    def is_alive(self) -> bool:
        return False


@contextmanager
def bent(world: World) -> Iterator[None]:
    """The real code in this world."""
    from django.db import connections
    from django.utils import timezone

    from orchestrator import launcher, wakeups
    from orchestrator.agent import attempts, sweeps
    from orchestrator.supervisor import liveness

    Keeper.chance = world.chance
    connection: Any = connections["default"]
    commit = connection._commit
    changes: list[tuple[Any, str, Any]] = [
        (time, "monotonic", lambda: world.elapsed_s),
        (time, "monotonic_ns", lambda: int(world.elapsed_s * 1e9)),
        (time, "time", lambda: world.now().timestamp()),
        (timezone, "now", world.now),
        (launcher, "spawn", world.spawn),
        (liveness, "with_nonce", world.with_nonce),
        (liveness, "send_signal", world.send_signal),
        (liveness, "identify", world.identify),
        (liveness, "is_alive", lambda process: False),
        (liveness, "boot_id", lambda: world.boot),
        (wakeups, "_send_task", lambda name, *arguments: world.queue.append((name, arguments))),
        (wakeups, "publish", lambda topic, seq=None: None),
        (attempts, "CheckpointKeeper", Keeper),
        (sweeps, "threading", types.SimpleNamespace(Thread=AtOnce)),
        (sweeps, "connection", types.SimpleNamespace(close=lambda: None)),
        (connection, "_commit", lambda: world.on_commit(commit)),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        with connection.execute_wrapper(world.on_query):
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


class History:
    """One seed's events, and what must hold after each."""

    def __init__(self, world: World, user: Any) -> None:
        from orchestrator.agent.loop import Loop

        self.world, self.chance, self.user = world, world.chance, user
        self.new_loop = lambda: Loop(threading.Event())
        self.loop = self.new_loop()
        self.finals: dict[Any, str] = {}

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
        from orchestrator import submission
        from orchestrator.spec import JobSpec

        spec = {
            "gpus": self.chance.choice([1, 1, 2]),
            "gpu_memory_gib": self.chance.choice([None, None, 30]),
            "max_retries": self.chance.randint(0, 3),
            "grace_period_s": 5,
            "preemptible": self.chance.random() < 0.5,
            "source": {"text": "print('on')\n"},
        }
        submission.accept(self.user, JobSpec.model_validate(spec), idempotency_key=f"k{self.chance.random()}")

    def ask(self) -> None:
        from orchestrator import lifecycle
        from orchestrator.models import Job

        jobs = list(Job.objects.order_by("pk"))
        if jobs:
            act = self.chance.choice(["cancel", "hold", "release", "release", "preempt"])
            getattr(lifecycle, act)(self.chance.choice(jobs), by="ada")

    def turn(self) -> None:
        self.world.beat()
        self.loop.tick()

    def deliver(self) -> None:
        from orchestrator import tasks

        if self.world.queue:
            name, arguments = self.world.queue.pop(self.chance.randrange(len(self.world.queue)))
            getattr(tasks, name.rpartition(".")[2])(*arguments)

    def supervisor_ends(self) -> None:
        if living := self.world.living():
            kind = self.chance.choice(["ok", "ok", "user_error", "signal", "oom_cpu", "infra", "hang"])
            self.world.end(self.chance.choice(living), kind)

    def supervisor_obeys(self) -> None:
        from orchestrator.supervisor.exit_record import KIND_OF_STOP
        from orchestrator.supervisor.records import read_record

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
        from tests.orchestrator.invariants import check_invariants

        check_invariants()
        held = {(str(lease.attempt.job_id), lease.attempt.number) for lease in self._leases(Lease)}
        for one in self.world.supervised:
            if one.ranks:
                assert (one.job, one.number) in held, f"I4: attempt {one.number} runs on devices it has not"
        for job in Job.objects.filter(state__in=FINAL_STATES):
            assert self.finals.setdefault(job.pk, job.state) == job.state, "I6: final is final"

    @staticmethod
    def _leases(lease: Any) -> list[Any]:
        return list(lease.objects.active().select_related("attempt"))

    def settle(self) -> None:
        """No more faults: everything comes to its end, and nothing is left (I15)."""
        from orchestrator.models import Device, Health, Job, Lease, Outbox

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
        left = [f"{job} {job.state} {job.reason} {job.wait_sentence}" for job in Job.objects.unfinished()]
        assert not left, f"I15: nobody acts for {left}"
        assert not Lease.objects.active().exists(), "I5: devices are held by nobody"
        assert not any(one.ranks or one.alive for one in self.world.supervised), "I11: processes are left"
        fenced = Device.objects.exclude(health=Health.OK)
        assert not fenced.exists(), f"fenced for ever: {[each.health_reason for each in fenced]}"
        self.step(self.turn)
        launches = Outbox.objects.open().filter(errand="launch")
        assert not launches.exists(), f"I12: {list(launches)}"

    def _release(self, job: Any) -> None:
        from orchestrator import lifecycle

        lifecycle.release(job, by="ada")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.simulation", description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    chosen = parser.parse_args()
    shared_memory = Path("/dev/shm")  # noqa: S108  # fsync costs nothing there
    folder = tempfile.mkdtemp(
        prefix="berth-simulation-", dir=shared_memory if shared_memory.is_dir() else None
    )
    try:
        return simulate(Path(folder), chosen.seed, chosen.histories)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def simulate(folder: Path, first: int, count: int) -> int:
    """Run the histories; the exit status, after the first that went wrong."""
    os.environ |= {"BERTH_HOME": str(folder / "home"), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    import django

    django.setup()
    import logging

    logging.disable(logging.CRITICAL)  # failures are what this is about
    began = REAL_MONOTONIC()
    user = prepare()
    for seed in range(first, first + count):
        if (problem := replay(seed, user)) is not None:
            sys.stdout.write(f"seed {seed}: {problem}\n")
            return 1
    took_s = REAL_MONOTONIC() - began
    sys.stdout.write(f"{count} histories from seed {first}, nothing wrong; {took_s:.0f} s\n")
    return 0


def prepare() -> Any:
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from orchestrator.models import Device, Pool
    from orchestrator.spec import GIB

    call_command("migrate", verbosity=0, interactive=False)
    pool, _ = Pool.objects.get_or_create(name="default")
    for index in range(3):
        Device.objects.create(
            id=f"sim-{index}", index=index, pool=pool, kind="sim", name="Sim", memory_bytes=80 * GIB
        )
    return User.objects.create_user("ada")


def replay(seed: int, user: Any) -> str | None:
    """One history on an empty server; what went wrong, if anything did."""
    from django.conf import settings

    clear()
    world = World(random.Random(seed), settings.HOME)  # noqa: S311  # a history, not a secret
    try:
        with bent(world):
            History(world, user).run()
    except AssertionError as error:
        return f"{error}\n  after {' '.join(world.history[-40:])}"
    finally:
        for one in world.supervised:
            world.release(one)
    return None


def clear() -> None:
    from django.conf import settings

    from orchestrator.models import (
        Attempt,
        Device,
        IdempotencyKey,
        Job,
        JobEvent,
        Lease,
        Outbox,
        SchedulerTerm,
    )

    for model in (Lease, Outbox, JobEvent, Attempt, IdempotencyKey, SchedulerTerm):
        model.objects.all().delete()
    Job.objects.all().delete()
    Device.objects.update(health="ok", health_reason="")
    shutil.rmtree(settings.HOME.jobs, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
