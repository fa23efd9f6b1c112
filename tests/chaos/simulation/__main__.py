"""Runs simulated histories from a first seed on, and tells which went wrong."""

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.simulation.bending import NoErrorOfOurs, bent
from tests.chaos.simulation.history import History
from tests.chaos.simulation.world import World

REAL_MONOTONIC = time.monotonic


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
    """Run the histories; the exit status."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    tempfile.tempdir = str(folder)  # where those settings make the state folder
    import django

    django.setup()
    ours = logging.getLogger("orchestrator")
    ours.handlers = [NoErrorOfOurs(logging.ERROR)]
    ours.propagate = False  # other failures are what this is about
    began = REAL_MONOTONIC()
    user = prepare()
    problems = {}
    for seed in range(first, first + count):
        if (problem := replay(seed, user)) is not None:
            problems[seed] = problem
            sys.stdout.write(f"seed {seed}: {problem}\n")
    took_s = REAL_MONOTONIC() - began
    sys.stdout.write(
        f"{count} histories from seed {first}, {len(problems) or 'nothing'} wrong; {took_s:.0f} s\n"
    )
    return 1 if problems else 0


def prepare() -> Any:
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from orchestrator.models import Device, Pool
    from orchestrator.spec.job_spec import GIB

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
    Device.objects.update(health="ok", health_why={})
    shutil.rmtree(settings.HOME.jobs, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
