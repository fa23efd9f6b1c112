"""Creates, changes, stops and removes services, with every check that a submit makes."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import IntegrityError, transaction
from django.utils import timezone
from pydantic import ValidationError

from orchestrator.exceptions import Conflict, Forbidden, Malformed, Sentence
from orchestrator.facts.events import ServiceFact
from orchestrator.facts.record import NOTHING, fact
from orchestrator.jobs.environments import requests
from orchestrator.jobs.submission import checks, intake
from orchestrator.jobs.submission.code import Upload, store_code
from orchestrator.models import Service, ServiceState
from orchestrator.people import rights
from orchestrator.services import controller
from orchestrator.services.asking import ServiceChanges, ServiceSpec, check_replicas
from orchestrator.spec.job_spec import JobSpec

# Trainings come first: a service uses what they leave.
PRIORITY = 20
# Of a job's fields, those that make no sense for the replicas of a service.
NOT_FOR_REPLICAS = ("name", "kind", "array", "not_before", "depends_on", "time_limit_s", "max_retries")

# Of a job's fields, those that its program does not notice: the next replica has them, and those that run stay.
NOT_OF_THE_PROGRAM = {"priority", "tags", "visibility", "git"}


def create(
    user: User,
    spec: ServiceSpec,
    *,
    script: Upload | None = None,
    bundle: Upload | None = None,
    uploaded: str | None = None,
) -> Service:
    """Create a service; its first replica starts with the first request, or now where one always runs.

    Args:
        uploaded: SHA-256 of a bundle that this person is known to may run; another one has to be of a job of theirs.

    Raises:
        Malformed, TooLarge: the job or its code cannot be read.
        Impossible, Forbidden: no replica could ever run, or not by this person.
        Conflict: the name is taken.
    """
    job, sha256 = _checked_job(user, spec.job, script, bundle, uploaded)
    now = timezone.now()
    rules = spec.model_dump(exclude={"name", "job"})
    try:
        with transaction.atomic():
            return Service.objects.create(
                name=spec.name,
                owner=user,
                pool_id=job.pool,
                job_fields=_fields(job),
                bundle=sha256,
                created_at=now,
                changed_at=now,
                **rules,
            )
    except IntegrityError:
        raise Conflict(
            Sentence("There is a service {spec} already; choose another name.", spec=spec.name)
        ) from None


def _checked_job(
    user: AbstractBaseUser,
    fields: Mapping[str, Any],
    script: Upload | None,
    bundle: Upload | None,
    *uploaded: str | None,
) -> tuple[JobSpec, str]:
    """The job of a replica with its stored code."""
    for name in NOT_FOR_REPLICAS:
        if name in fields:
            raise Malformed(
                Sentence("job: {name} is not for services.", name=name),
                fields={"job": [Sentence("leave out {name}", name=name)]},
            )
    job = intake.parse_spec({"priority": PRIORITY, **fields, "kind": "service"})
    resolved = checks.resolve(user, job)
    if job.source is not None and job.source.bundle not in (None, *uploaded):
        checks.check_bundle(user, job.source.bundle)
    job, stored, _ = store_code(job, script, bundle)
    requests.of_submit(user, job, stored.sha256)
    return job.model_copy(update={"pool": resolved.pool}), stored.sha256


def _fields(job: JobSpec) -> dict[str, Any]:
    return job.model_dump(mode="json", exclude_unset=True, exclude={"source"}) | {
        "pool": job.pool,
        "kind": "service",
        "max_retries": 0,  # the service itself begins the next replica
    }


def check_steer(user: AbstractBaseUser, service: Service) -> None:
    """Check that a person who may see a service may also change it: its owner, or an operator of its pool.

    Raises:
        Forbidden: they may only look at it.
    """
    role = rights.right_in(user, service.pool_id)
    if role == "viewer" or (role == "submitter" and service.owner_id != user.pk):
        raise Forbidden("You may look at this service, but not change it. Ask an operator of its pool.")


def update(
    user: AbstractBaseUser,
    service: Service,
    changes: ServiceChanges,
    *,
    script: Upload | None = None,
    bundle: Upload | None = None,
    uploaded: str | None = None,
) -> None:
    """Change the rules, or job and code; new replicas take over once they are ready, then the old ones stop.

    Replicas that run the same program as the changed service keep running.

    Raises:
        Malformed, TooLarge, Impossible, Forbidden: as ``create``.
    """
    given = changes.model_dump(exclude_none=True, exclude={"job"})
    try:
        check_replicas(
            given.get("min_replicas", service.min_replicas), given.get("max_replicas", service.max_replicas)
        )
    except ValueError as error:
        raise Malformed(Sentence("{error}.", error=error)) from None
    if changes.job is not None or script is not None or bundle is not None:
        if service.owner_id != user.pk:
            raise Forbidden("Only its owner may change what a service runs, because it runs as its owner.")
        fields = changes.job or _asked(service)
        if script is None and bundle is None and service.bundle and "source" not in fields:
            fields = {**fields, "source": {"bundle": service.bundle}}  # other fields change no code
        job, given["bundle"] = _checked_job(user, fields, script, bundle, uploaded, service.bundle)
        given |= {"job_fields": _fields(job), "pool_id": job.pool}
        if _is_other(service, given["job_fields"], given["bundle"]) or any(
            "@" not in name for name in job.datasets
        ):  # the newest version may be another
            given["revision"] = service.revision + 1
    _set(service, **given, changed_at=timezone.now())


def _is_other(service: Service, job_fields: Mapping[str, Any], bundle: str) -> bool:
    """Whether a job is another program than the stored one; one that cannot be read is another."""
    try:
        return _program(job_fields, bundle) != _program(service.job_fields, service.bundle)
    except ValidationError:
        return True


def _program(job_fields: Mapping[str, Any], bundle: str) -> tuple[dict[str, Any], str]:
    """What a replica runs, and where: replicas of another program are replaced."""
    # A field that is left out has its default; without a priority that of services was set.
    spec = JobSpec.model_validate(job_fields)
    return spec.model_dump(exclude=NOT_OF_THE_PROGRAM), bundle


def _asked(service: Service) -> dict[str, Any]:
    """The fields of its job as they were asked for."""
    stored = service.job_fields if isinstance(service.job_fields, dict) else {}
    return {name: value for name, value in stored.items() if is_kept(name)}


def is_kept(name: str) -> bool:
    """Whether a stored field goes into the job of a changed service; a field of another version does not."""
    return name in JobSpec.model_fields and name not in NOT_FOR_REPLICAS


def stop(service: Service, *, by: str) -> None:
    """Stop its replicas and refuse requests, until it is started again; repeating this is harmless."""
    _set(service, state=ServiceState.STOPPED, why=fact(ServiceFact.STOPPED_BY, by=by).as_json(), wanted=0)
    controller.end_replicas(service)


def start(service: Service) -> None:
    """Let a stopped or failed service answer again; repeating this is harmless."""
    if service.state != ServiceState.ON:
        _set(service, state=ServiceState.ON, why=NOTHING.as_json(), changed_at=timezone.now(), asked_at=None)


def remove(service: Service) -> None:
    """Remove a service with its keys; its replicas' jobs stay in the list of jobs, stopped."""
    _set(service, state=ServiceState.STOPPED)  # so that nobody begins a replica between the next two lines
    controller.end_replicas(service)
    service.delete()


def _set(service: Service, **changes: Any) -> None:
    for name, value in changes.items():
        setattr(service, name, value)
    service.save(update_fields=list(changes))
