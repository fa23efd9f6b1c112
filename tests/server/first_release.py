"""Makes a state folder of the first release, upgrades it, and prints what REST says of its jobs; run by test_upgrade.py.

In a process of its own: a test's own database is as new as the code.
"""

import json
import os
import sys
from typing import Any

import django

JOBS = ("finished", "cut-off", "waiting")


def fill(executor: object) -> None:
    """Migrate to the first release only, and write rows as it did."""
    from django.db.migrations.executor import MigrationExecutor
    from django.utils import timezone

    assert isinstance(executor, MigrationExecutor)
    first = ("orchestrator", "0001_initial")
    latest = [each for each in executor.loader.graph.leaf_nodes() if each[0] in {"auth", "sessions"}]
    executor.migrate([first, *latest])
    apps: Any = executor.loader.project_state([first, *latest]).apps
    now = timezone.now()
    user = apps.get_model("auth", "User").objects.create(username="ada")
    pool = apps.get_model("orchestrator", "Pool").objects.create(name="old")
    device = apps.get_model("orchestrator", "Device").objects.create(
        id="cpu-0", index=0, kind="slot", name="CPU slot", memory_bytes=2**30, pool=pool
    )
    job_rows = apps.get_model("orchestrator", "Job").objects
    for name, job_state in zip(JOBS, ("succeeded", "running", "queued"), strict=True):
        job = job_rows.create(
            name=name,
            owner=user,
            pool=pool,
            spec_fields={"name": name, "entrypoint": "train.py", "args": ["--lr", "0.1"], "pool": "old"},
            bundle="0" * 64,
            state=job_state,
            submitted_at=now,
            queued_at=now,
            reason=f"Submitted by {user.username}.",
            step=50,
            total_steps=100,
            last_values={"loss": 0.5},
        )
        apps.get_model("orchestrator", "JobEvent").objects.create(
            job=job, number=1, at=now, to_state="queued", actor="ada", reason="Submitted."
        )
        if job_state == "queued":
            continue
        attempt = apps.get_model("orchestrator", "Attempt").objects.create(
            job=job, number=1, nonce="n", state="ended", kind="ok", created_at=now, ended_at=now
        )
        apps.get_model("orchestrator", "Lease").objects.create(
            attempt=attempt, device=device, rank=0, started_at=now, ended_at=now
        )
        apps.get_model("orchestrator", "Checkpoint").objects.create(
            job=job, attempt_number=1, step=50, name="step-50", source="library", size_bytes=3, created_at=now
        )


def answers() -> dict[str, object]:
    from django.contrib.auth.models import User
    from django.test import Client

    web = Client(headers={"host": "localhost"})
    web.force_login(User.objects.get(username="ada"))
    listed = web.get("/api/v1/jobs").json()["results"]
    ids = {each["name"]: each["id"] for each in listed}
    return {
        "states": {each["name"]: each["state"] for each in listed},
        "job": web.get(f"/api/v1/jobs/{ids['finished']}").json(),
        "checkpoints": web.get(f"/api/v1/jobs/{ids['finished']}/checkpoints").json(),
        "page": web.get(f"/jobs/{ids['finished']}").status_code,
    }


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "orchestrator.server.settings"
    django.setup()
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    from orchestrator.server.operation import first_start

    fill(MigrationExecutor(connection))
    waiting = first_start.waiting_migrations()
    first_start.migrate()
    sys.stdout.write(json.dumps({"waiting": waiting, "after": first_start.waiting_migrations(), **answers()}))


if __name__ == "__main__":
    main()
