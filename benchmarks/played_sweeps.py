"""A sweep as production leaves it, written at once: trials with settings, reports at rungs, curves and jobs.

    python -m benchmarks.played_sweeps --trials 500        in the environment of a server (BERTH_HOME)

The loss has a valley at a learning rate of 1e-3, falls with the width, and explodes where the rate is high.
"""

import argparse
import math
import os
from datetime import timedelta
from typing import Any

import numpy as np

RUNGS = (10, 30, 90, 180)
SPACE = {
    "lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
    "width": {"type": "int", "low": 16, "high": 256, "log": True},
    "dropout": {"type": "float", "low": 0.0, "high": 0.5},
    "optimizer": {"type": "categorical", "choices": ["adam", "sgd"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": ["sgd"]}},
    "amp": {"type": "bool"},
}


def play(
    owner: Any, count: int, *, state: str = "ended", all_failed: bool = False, curves: bool = True
) -> Any:
    """Write a sweep of ``count`` trials in the default pool; returns its row."""
    from django.utils import timezone

    from orchestrator.models import Pool, Sweep

    now = timezone.now()
    pool, _ = Pool.objects.get_or_create(name="default")
    sweep = Sweep.objects.create(
        owner=owner, pool=pool, name="digits sweep", job_fields={}, bundle="0" * 64, space=SPACE, metric="val/loss",
        direction="minimize", sampler="auto", seed=7, hand_over="args", max_trials=max(count, 40),
        max_device_s=count * 3600.0, max_width=4, longest=RUNGS[-1], state=state, why={},
        created_at=now - timedelta(hours=5), ended_at=None if state in {"running", "paused"} else now,
    )  # fmt: skip
    for number in range(count):
        _play_trial(sweep, number, count, all_failed=all_failed, curves=curves)
    return sweep


def _play_trial(sweep: Any, number: int, count: int, *, all_failed: bool, curves: bool) -> None:
    from orchestrator.models import RungReport, SweepTrial
    from orchestrator.sweeps.core.reading import read_space

    random = np.random.default_rng([sweep.seed, number])
    space = read_space(SPACE)
    settings = space.at(random.random(space.width))
    values = _curve(settings, random)
    fails = all_failed or not math.isfinite(values[-1])
    reached = _reached(values, number, count)
    state = "failed" if fails else {RUNGS[-1]: "ended", RUNGS[-2]: "paused"}.get(reached, "stopped")
    if sweep.ended_at is None and number >= count - 3 and not fails:
        state, reached = "running", RUNGS[1]
    elif sweep.ended_at is not None and state == "paused":
        state = "stopped"
    job = _job(sweep, number, state, settings, reached)
    ended_at = (
        None if state in {"running", "paused"} else sweep.created_at + (job.submitted_at - sweep.created_at)
    )
    trial = SweepTrial.objects.create(
        sweep=sweep, number=number, settings=settings, job=job, state=state, created_at=job.submitted_at,
        ended_at=ended_at, error="ValueError: the loss is not a number" if fails else "",
    )  # fmt: skip
    for rung in RUNGS:
        if rung <= reached and not all_failed:
            value = values[rung - 1]
            RungReport.objects.create(trial=trial, rung=rung, value=value if math.isfinite(value) else None)
    if curves and not all_failed:
        job.metric_seq = _write_curve(job, values[:reached])
        job.save()


def _curve(settings: Any, random: Any) -> list[float]:
    far = (math.log10(settings["lr"]) + 3) ** 2 / 4
    end = (
        0.2
        + far
        + 8 / settings["width"]
        + settings["dropout"] / 4
        + (0.2 if settings["optimizer"] == "sgd" else 0)
    )
    steps = np.arange(1, RUNGS[-1] + 1)
    curve = end + (2.5 - min(end, 2.0)) * np.exp(-steps / 30) + random.normal(0, 0.02, len(steps))
    if settings["lr"] > 0.06:
        curve[60:] = np.inf
    return [float(each) for each in curve]


def _reached(values: list[float], number: int, count: int) -> int:
    """Where a trial was left: the better its early value, the further."""
    for rung, limit in zip(RUNGS, (1.9, 1.3, 0.75), strict=False):
        if values[rung - 1] > limit:
            return rung
    return RUNGS[-1]


def _job(sweep: Any, number: int, state: str, settings: Any, reached: int) -> Any:
    from orchestrator.models import Job
    from orchestrator.spec.job_spec import JobSpec

    states = {"ended": "succeeded", "paused": "held", "stopped": "cancelled"}
    args = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    spec = JobSpec(args=args)
    at = sweep.created_at + timedelta(minutes=number * 240 / max(1, sweep.max_trials))
    return Job.objects.create(
        owner=sweep.owner, pool=sweep.pool, name=f"{sweep.name} [{number}]", bundle="0" * 64, gpus=1,
        spec_fields=spec.model_dump(mode="json", exclude={"source"}), state=states.get(state, state),
        priority=spec.priority, submitted_at=at, queued_at=at, event_count=1, attained_gpu_s=reached * 2.0,
        ended_at=None if state in {"running", "paused"} else at, total_steps=RUNGS[-1], step=reached,
    )  # fmt: skip


def _write_curve(job: Any, values: list[float]) -> int:
    from django.conf import settings

    from orchestrator.store.metrics.writer import MetricWriter, Point

    writer = MetricWriter(settings.HOME.job(job.pk).metrics, 1, 0.0, None)
    writer.append([Point("val/loss", step, float(step), value) for step, value in enumerate(values, 1)])
    seq = int(writer.flush()["seq"])
    writer.close()
    return seq


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--owner", required=True)
    asked = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.server.settings")
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.db import transaction

    with transaction.atomic():
        sweep = play(User.objects.get(username=asked.owner), asked.trials)
    print(sweep.pk)  # a command's answer
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
