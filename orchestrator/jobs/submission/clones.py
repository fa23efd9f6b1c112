"""Clones: the code of an earlier job as a new job of the same owner, with other fields where they were changed."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.utils import timezone

from berth.shared.job_fields import STARTS
from orchestrator.exceptions import Conflict, Malformed, Sentence
from orchestrator.jobs.environments import requests
from orchestrator.jobs.submission import checks, code, rows
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import SETTINGS_VARIABLE, Environment, Job, SweepTrial
from orchestrator.models.transactions import again_when_undone
from orchestrator.people import agents, quotas, rights
from orchestrator.spec.job_spec import JobFields
from orchestrator.store.checkpoints.generations import GenerationStore

ENVIRONMENT_FIELDS = frozenset({"environment", "with_packages", "python", "image"})


@again_when_undone
def retry(
    user: AbstractBaseUser,
    job: Job,
    *,
    resume: bool,
    changes: Mapping[str, Any],
    plan: Mapping[str, Any] | None = None,
) -> Job:
    """Submit the same code as a new job of the same owner, even if another person asks.

    Args:
        resume: start from the newest checkpoint of ``job``.
        changes: fields of the spec that differ.
        plan: how a ``model`` trains; None: its run plans.

    Raises:
        Conflict: there is no checkpoint to resume from.
        Forbidden: this person may not steer the job, or changes what another person's job runs.
    """
    if resume and not GenerationStore(settings.HOME.job(job.pk)).list():
        raise Conflict(
            Sentence("{job} has kept no checkpoint to resume from; run it again without resume.", job=job)
        )
    if "array" in changes:
        raise Malformed(
            "One job is run again; submit an array as a new job.", fields={"array": ["cannot be changed"]}
        )
    spec = parse_spec({**_kept_fields(job, changes), **changes, "source": code.source_of(job)})
    checks.check_own(spec)
    rights.check_retry(user, job, changes)
    agents.check_clone(user, job)
    owner = job.owner
    spec = checks.resolve(owner, spec, asked_by=user)
    is_fetched = code.is_fetched(spec, None, None)
    wanted = None
    if not is_fetched:
        code.store_code(spec, None, None)  # the bundle is there, with the entrypoint
        wanted = requests.of_submit(owner, spec, job.bundle) if _changes_packages(job, changes) else None
    spec = wanted.spec if wanted else spec
    with transaction.atomic():
        quotas.one_submit_at_a_time(owner)
        quotas.check_submit(owner, spec)
        agents.check_submit(user, spec)
        agents.check_planned(user, spec)
        columns = rows.columns_of(owner, spec, job.bundle) | {"agent": agents.mark_of(user)}
        columns["environment"] = (
            rows.environment_row(wanted.declared) if wanted else _same_environment(job.environment)
        )
        if is_fetched and job.checkout is not None:
            given = {*job.checkout.given, *changes}
            columns["checkout"] = code.checkout_of(owner.pk, spec, given)
        if plan is not None:
            columns["next_plan"] = dict(plan)
        return rows.create(user, spec, columns, parent=job, resume=resume)


def _same_environment(row: Environment | None) -> Environment | None:
    """The packages of a clone: the lock of the job that it repeats."""
    return None if row is None else rows.ask_for(requests.again(row, timezone.now()))


def _changes_packages(job: Job, changes: Mapping[str, Any]) -> bool:
    """Whether a clone needs other packages: an interpreter is known in its pool only."""
    if ENVIRONMENT_FIELDS & changes.keys():
        return True
    return "pool" in changes and job.environment is not None and bool(job.environment.interpreter)


def _kept_fields(job: Job, changes: Mapping[str, Any]) -> JobFields:
    """The fields of an earlier job that a clone keeps.

    Another script, module or command takes the place of what it started; from a CPU slot to GPUs and back, the clone
    goes to the pool that suits it.
    """
    replaced = set(STARTS) if any(changes.get(name) for name in STARTS) else set()
    if "gpus" in changes and (changes["gpus"] == 0) != (job.spec_fields.get("gpus") == 0):
        replaced.add("pool")
    if "gpus" in changes and changes.get("max_gpus") is None:
        replaced.add("max_gpus")  # a number was asked for, or a range of its own
    kept = {name: value for name, value in job.spec_fields.items() if name not in replaced}
    return kept | ({"env": env_to_repeat(job)} if "env" in kept else {})


def env_to_repeat(job: Job) -> dict[str, str]:
    """The variables of a job for a clone of it.

    The JSON of a trial's settings repeats what its arguments or variables say, and would contradict a changed one.
    It stays where the script has its settings from nowhere else.
    """
    env: dict[str, str] = dict(job.spec_fields.get("env") or {})
    if SETTINGS_VARIABLE in env:
        trial = SweepTrial.objects.filter(job=job).select_related("sweep").first()
        if trial is not None and trial.sweep.hand_over != "json":
            del env[SETTINGS_VARIABLE]
    return env
