"""Fills a new state folder with people, devices and jobs in several states, and prints their tokens and ids."""

import json
import os
import secrets
import sys
import zipfile
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.server.settings")
django.setup()

from django.conf import settings  # noqa: E402  # after the set-up
from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.utils import timezone  # noqa: E402

from orchestrator.facts.endings import Ended  # noqa: E402
from orchestrator.facts.record import fact, sentence_only  # noqa: E402
from orchestrator.jobs import lifecycle  # noqa: E402
from orchestrator.models import (  # noqa: E402
    Attempt,
    Checkpoint,
    DatasetRoot,
    Device,
    Environment,
    ExitKind,
    Job,
    Pool,
)
from orchestrator.people import tokens  # noqa: E402
from orchestrator.spec.job_spec import GIB, JobSpec  # noqa: E402
from orchestrator.store.bundles import bundles  # noqa: E402
from orchestrator.store.checkpoints.generations import GenerationStore  # noqa: E402

OLD_LOG = "".join(f"line {number}\n" for number in range(1, 40_001))
MANY = 57
DEVICES = 4


def main() -> None:
    call_command("migrate", verbosity=0)
    for folder in (settings.HOME.bundles, settings.HOME.uploads):
        folder.mkdir(parents=True, exist_ok=True)
    ada, bob = (User.objects.create_user(name) for name in ("ada", "bob"))
    root = User.objects.create_superuser("root")
    pool = Pool.objects.create(name="default")
    devices = [
        Device.objects.create(
            id=f"sim-{index}", index=index, kind="sim", name="Simulated GPU", memory_bytes=80 * GIB, pool=pool
        )
        for index in range(DEVICES)
    ]
    DatasetRoot.objects.create(name="examples", path=str(settings.BASE_DIR / "examples/data"))
    for number in range(MANY):
        make_job(bob, f"many-{number}", tags=["many"])
    jobs = {
        "ended": make_ended(ada, devices[:1]),
        "failed": make_failed(ada, devices[1:2]),
        "running": make_running(ada, devices[:2]),
        "waiting": make_job(
            ada,
            "vit-s",
            gpus=3,
            wait_code="devices",
            wait_facts={"sentence": "Waits for 3 devices; 2 are free."},
            wait_ahead=1,
        ),
        "evil": make_job(bob, "evil"),
        "unmet": make_unmet(bob),
    }
    Job.objects.filter(pk=jobs["evil"].pk).update(name="\x1b]0;owned\x07evil")  # as no submit would let in
    found = {
        "tokens": {
            "ada": tokens.issue(ada, name="t")[1],
            "bob": tokens.issue(bob, name="t")[1],
            "root": tokens.issue(root, name="t", scope="admin")[1],
            "reader": tokens.issue(ada, name="t", scope="read")[1],
        },
        "jobs": {name: str(job.pk) for name, job in jobs.items()},
    }
    json.dump(found, sys.stdout)


def make_unmet(owner: User) -> Job:
    """A job whose packages could not be installed."""
    how = fact(Ended.ENVIRONMENT_FAILED, cause="unknown", origin="unmet.py", message="no einopz")
    now = timezone.now()
    row = Environment.objects.create(
        request_sha256="0" * 64,
        request={},
        origin="unmet.py",
        state="failed",
        why=how.as_json(),
        created_at=now,
    )
    log = settings.HOME.environments.log(row.pk)
    log.parent.mkdir(parents=True)
    log.write_text("error: einopz was not found\n")
    job = make_job(owner, "unmet", environment=row)
    lifecycle.fail_waiting(job, why=how, kind=ExitKind.ENVIRONMENT)
    return job


def make_job(owner: User, name: str, *, args: list[str] | None = None, gpus: int = 1, **columns: Any) -> Job:
    now = timezone.now()
    code = bundles.store_script(settings.HOME.bundles, "train.py", b"print('step 1 loss 0.5')\n")
    spec = JobSpec(name=name, args=args or [], gpus=gpus)
    return Job.objects.create(
        owner=owner,
        pool_id="default",
        name=name,
        spec_fields=spec.model_dump(mode="json", exclude={"source"}),
        bundle=code.sha256,
        gpus=gpus,
        submitted_at=now,
        queued_at=now,
        **columns,
    )


def make_running(owner: User, devices: list[Device]) -> Job:
    job = make_job(owner, "tiny-gpt", args=["--lr", "3e-4", "--depth", "4"], gpus=2)
    attempt = launch(job, devices)
    log = settings.HOME.job(job.pk).attempt(attempt.number).log(0)
    log.parent.mkdir(parents=True)
    log.write_text(OLD_LOG)
    values = {"step": 720, "total_steps": 1000, "steps_per_s": 2.0, "last_values": {"loss": 2.31, "lr": 1e-4}}
    Job.objects.filter(pk=job.pk).update(**values)
    return job


def make_failed(owner: User, devices: list[Device]) -> Job:
    job = make_job(owner, "ner", args=["--lr", "1e-3", "--amp"])
    failure = {"rank": 0, "code": 3, "signal": None, "exception": "KeyError", "message": "'lr'"}
    end(
        job,
        devices,
        ExitKind.USER_ERROR,
        "KeyError: 'lr' on rank 0.",
        first_failure=failure,
        log_tail="Traceback\nKeyError: 'lr'\n",
    )
    return job


def make_ended(owner: User, devices: list[Device]) -> Job:
    job = make_job(owner, "eval")
    end(job, devices, ExitKind.OK, "Finished.", run_s=7200)
    output = settings.HOME.job(job.pk).output
    (output / "plots").mkdir(parents=True)
    (output / "result.json").write_text('{"accuracy": 0.97}\n')
    (output / "plots" / "a b.txt").write_text("a plot\n")
    work = settings.HOME.job(job.pk).work
    work.mkdir()
    (work / "result.json").write_text("beside\n")
    (work / "scores.csv").write_text("epoch,loss\n")
    keep_checkpoint(job, 300)
    return job


def keep_checkpoint(job: Job, step: int) -> None:
    folder = settings.HOME.job(job.pk)
    folder.checkpoints.mkdir(parents=True)
    with zipfile.ZipFile(folder.checkpoints / "state.pt", "w") as file:
        file.writestr("step", str(step))
    kept = GenerationStore(folder).capture([folder.checkpoints / "state.pt"], 1, step, lambda: True)
    if kept is None:
        raise RuntimeError("The checkpoint was not kept.")
    Checkpoint.objects.create(
        job=job,
        attempt_number=1,
        step=step,
        name=kept.name,
        source="script",
        size_bytes=kept.size_bytes,
        created_at=timezone.now(),
    )


def launch(job: Job, devices: list[Device]) -> Attempt:
    now = timezone.now()
    shares = [(device, None) for device in devices]
    attempt = lifecycle.start(job, shares, nonce=secrets.token_hex(16), now=now)
    lifecycle.claim_launch(attempt, now)
    lifecycle.run(attempt, started_at=now)
    return Attempt.objects.get(pk=attempt.pk)


def end(job: Job, devices: list[Device], kind: ExitKind, detail: str, **facts: Any) -> None:
    attempt = launch(job, devices)
    lifecycle.end(
        attempt, lifecycle.Ending(kind, sentence_only(detail), at=timezone.now(), retriable=False, **facts)
    )


if __name__ == "__main__":
    main()
