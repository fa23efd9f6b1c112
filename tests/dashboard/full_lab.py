"""A lab with everything on its pages: long names, shared, kept and foreign devices, every state, data and limits."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from orchestrator.models import (
    Attempt,
    Booking,
    BookingKind,
    Dataset,
    DatasetRoot,
    Device,
    Job,
    JobEvent,
    JobState,
    Lender,
    Pilot,
    Pool,
    PoolRight,
    Quota,
    Right,
)
from orchestrator.people import audit
from orchestrator.scheduler import passes
from orchestrator.spec.job_spec import GIB
from orchestrator.store.layout import Home
from orchestrator.store.metrics.device_history import DeviceHistory
from orchestrator.store.metrics.writer import MetricWriter, Point
from tests.dashboard.full_federations import fill_federations, site_jobs
from tests.dashboard.full_models import fill_models

LONG = "a-name-" * 25  # one word: no line break fits
WORDS = "a name of many words that somebody gave in a hurry " * 3
HISTORY_S = 3600.0
USED_GIB = {0: 31.0, 1: 12.4, 2: 0.0, 3: 22.0, 4: 0.0}


@dataclass(frozen=True)
class Makers:
    """The fixtures that make rows."""

    job: Callable[..., Job]
    attempt: Callable[..., Attempt]
    device: Callable[..., Device]
    pool: Callable[..., Pool]
    readings: Callable[..., None]


@dataclass(frozen=True)
class FullLab:
    running: Job
    failed: Job
    device: str


def fill_lab(home: Home, me: User, other: User, make: Makers) -> FullLab:
    """Five devices (held alone, shared, free for short jobs, foreign, free), 20 jobs, numbers, logs, data, limits."""
    devices = [make.device(number) for number in range(5)]
    running = _run(make, me, devices[0], LONG)
    shares = [_run(make, owner, devices[1], name, 6 * GIB) for owner, name in ((me, "embed"), (other, WORDS))]
    _numbers(home, running)
    failed = _ended(make, me)
    _history(home, devices)
    _settings(home, me, other, make, devices[4])
    fill_models(home, me, running, devices[0].pool)
    fill_federations(home, me, devices[0].pool, site_jobs(make.job, me))
    write_lab_readings(make.readings, [running, *shares])
    _wait(make, me, other)
    return FullLab(running, failed, devices[3].pk)


def write_lab_readings(write: Callable[..., None], jobs: list[Job]) -> None:
    alone, *shared = jobs
    strangers = [
        {"pid": 4000 + number, "used_bytes": 11 * GIB, "user": user, "command": command, "job": None}
        for number, (user, command) in enumerate(
            (("carl", "python"), ("a-very-long-user-name" * 3, "x" * 60))
        )
    ]
    write(
        *(f"sim-{number}" for number in range(5)),
        simulated=True,
        sim_0={"holders": [_holder(alone)], "processes": [_process(alone, 31)], **_numbers_of(0)},
        sim_1={
            "holders": [_holder(job) for job in shared],
            "processes": [_process(job, 4) for job in shared],
            **_numbers_of(1),
        },
        sim_2=_numbers_of(2),
        sim_3={"processes": strangers, "foreign_bytes": 22 * GIB, **_numbers_of(3)},
        sim_4=_numbers_of(4),
    )


def _numbers_of(number: int) -> dict[str, Any]:
    used = round(USED_GIB[number] * GIB)
    return {
        "used_bytes": used,
        "utilization_percent": 97.0 if used else 0.0,
        "temperature_c": 71.0,
        "power_w": 412.0,
    }


def _holder(job: Job) -> dict[str, Any]:
    owner = job.owner.get_username()
    return {"job": str(job.pk), "name": job.name, "owner": owner, "rank": 0, "colour": job.colour}


def _process(job: Job, used_gib: float) -> dict[str, Any]:
    used = round(used_gib * GIB)
    return {"pid": 1234, "used_bytes": used, "user": "berth", "command": "python", "job": str(job.pk)}


def _run(make: Makers, owner: User, device: Device, name: str, memory_bytes: int | None = None) -> Job:
    attempt = make.attempt(
        make.job(owner, name=name[:200], tags=["tag-" * 16, "paper"], total_steps=1000),
        state=JobState.RUNNING,
        devices=[device],
        memory_bytes=memory_bytes,
    )
    job = attempt.job
    job.step, job.steps_per_s = 500, 2.0
    job.last_values = {"train/loss": 0.51234}
    job.save()
    return job


def _numbers(home: Home, job: Job) -> None:
    writer = MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None)
    writer.append([Point("train/loss", step, 1000.0 + step, 3.0 / (step + 1)) for step in range(50)])
    job.metric_seq = writer.flush()["seq"]
    job.save()
    writer.close()
    path = home.job(job.pk).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_text(f"step 1 loss 3\n{'a long line ' * 40}\n{LONG}\n")
    work = home.job(job.pk).work
    work.mkdir(parents=True)
    (work / f"{'long' * 20}.csv").write_text("a-column," * 30)


def _wait(make: Makers, me: User, other: User) -> None:
    """Jobs that need more devices than are free, so that a pass keeps these for the first of them."""
    make.job(other, name=f"big-{LONG}"[:200], gpus=3)
    for number in range(8):
        make.job(me, name=f"waits-{number}", gpus=4)
    make.job(me, name=WORDS[:200], state=JobState.HELD)
    make.job(me, name="later", state=JobState.BACKOFF, next_try_at=timezone.now() + timedelta(minutes=40))
    passes.run_pass()


def _ended(make: Makers, me: User) -> Job:
    ends = [JobState.SUCCEEDED, JobState.CANCELLED, JobState.TIMED_OUT, JobState.FAILED]
    for state in ends:
        job = make.job(me, name=f"{state}-{LONG}"[:200], state=state, ended_at=timezone.now())
        JobEvent.objects.create(
            job=job,
            number=2,
            at=timezone.now(),
            from_state="running",
            to_state=state,
            kind="told",
            data={"sentence": f"It ended because {WORDS}."},
        )
    return job


def _history(home: Home, devices: list[Device]) -> None:
    history = DeviceHistory(home.device_history)
    now = time.time()
    for device in devices:
        for ago_s in range(int(HISTORY_S), 0, -20):
            history.append(
                device.pk,
                now - ago_s,
                memory_used_bytes=USED_GIB[device.index] * GIB,
                utilization_percent=float(ago_s // 20 % 100),
                temperature_c=60.0 + ago_s % 10,
                power_w=300.0 + ago_s % 100,
            )
    history.flush()


def _settings(home: Home, me: User, other: User, make: Makers, free: Device) -> None:
    folder = DatasetRoot.objects.create(name="data", path=str(home.root))
    Dataset.objects.create(name="words-" * 12, root=folder, path="words/" * 12, owner=other)
    PoolRight.objects.create(pool=make.pool("lab"), user=other, right=Right.SUBMIT)
    Quota.objects.create(user=other, max_devices=2)
    now = timezone.now()
    Lender.objects.create(
        pool=make.pool("lab"),
        system="slurm",
        partition=LONG[:60],
        gpus=4,
        problem=WORDS[:400],
        problem_at=now,
    )
    pilot = {
        "pool": make.pool("lab"),
        "system": "slurm",
        "devices": 4,
        "longest_s": 3600,
        "requested_at": now,
    }
    Pilot.objects.create(
        name="lab-slurm-1", tag="a", state="held", grant="4711", where=LONG[:60], until=now, **pilot
    )
    Pilot.objects.create(name="lab-slurm-2", tag="b", state="waiting", reason=WORDS[:200], **pilot)
    booking = Booking.objects.create(
        name=WORDS[:100],
        pool=free.pool,
        kind=BookingKind.RESERVATION,
        start=timezone.now() + timedelta(hours=9),
        until=timezone.now() + timedelta(hours=12),
    )
    booking.devices.add(free)
    booking.people.add(other)
    for number in range(6):
        audit.record(me, "token.made", f"token {number} {LONG[:60]}", f"{WORDS}.", address="10.0.0.1")
