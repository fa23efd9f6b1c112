"""Begins federations: checks what a submit checks, then submits the jobs of all sites and of their server."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import Forbidden, Impossible, Malformed, Sentence
from orchestrator.facts.events import FederationFact
from orchestrator.facts.record import fact
from orchestrator.federations import controller
from orchestrator.federations.asking import FederationSpec
from orchestrator.jobs import datasets, exchanges, promotion
from orchestrator.jobs.submission import checks, intake
from orchestrator.jobs.submission.code import Upload, store_code
from orchestrator.models import (
    FEDERATION_VARIABLE,
    Device,
    Federation,
    FederationMember,
    FederationState,
    Health,
    Job,
)
from orchestrator.people import rights
from orchestrator.spec.job_spec import JobSpec

MODULE: Final = "training.federated"
# Of a job's fields, those that make no sense for the jobs of a federation.
NOT_FOR_SITES = (
    "name", "entrypoint", "module", "command", "args", "program", "kind", "array", "launcher", "depends_on", "not_before",
)  # fmt: skip


def create(
    user: User, spec: FederationSpec, *, script: Upload | None = None, bundle: Upload | None = None
) -> Federation:
    """Begin a federation.

    Raises:
        Malformed, TooLarge: the job or its code cannot be read.
        Impossible, Forbidden: its jobs could never run together, or not by this person.
        NotFound: a model that is named.
    """
    for name in NOT_FOR_SITES:
        if name in spec.job:
            raise Malformed(
                Sentence("job: {name} is not for sites.", name=name),
                fields={"job": [Sentence("leave out {name}", name=name)]},
            )
    if spec.result is not None:
        datasets.check_names(spec.result, "1", "")
    begins_with = promotion.find(spec.begin_with, user).dataset.reference if spec.begin_with else None
    first, sha256 = stored_site(user, spec.job, spec.model, script, bundle)
    _check_room(spec, first)
    federation = Federation(
        owner=user,
        pool_id=first.pool,
        name=(spec.name or f"{spec.model.partition(':')[0]} federated")[:180],
        options=spec.model_dump(mode="json", exclude={"job", "name", "result"}, exclude_none=True),
        rounds=spec.rounds,
        sites=spec.count,
        result_name=spec.result or "",
        created_at=timezone.now(),
    )
    fields = {**spec.job, "pool": first.pool, "source": {"bundle": sha256}}
    _submit_all(user, federation, spec, fields, begins_with)
    return federation


def stored_site(
    user: User, given: Mapping[str, Any], model: str, script: Upload | None, bundle: Upload | None
) -> tuple[JobSpec, str]:
    """The job of a site as a submit would take it, with its stored code.

    Args:
        given: the fields of the job.
        model: function that builds the model; a script alone gets the name of its file.

    Raises:
        Malformed, TooLarge, Impossible, Forbidden: as a submit.
    """
    file = model.partition(":")[0]
    is_script = script is not None or (bundle is None and "text" in (given.get("source") or {}))
    starts = {"entrypoint": file} if is_script and file.endswith(".py") else {"module": MODULE}
    job = intake.parse_spec({"gpus": 0, **given, **starts})
    resolved = checks.resolve(user, job)
    if job.source is not None and job.source.bundle is not None:
        checks.check_bundle(user, job.source.bundle)
    job, stored, _ = store_code(job, script, bundle)
    return job.model_copy(update={"pool": resolved.pool}), stored.sha256


def _check_room(spec: FederationSpec, job: JobSpec) -> None:
    """Refuse more sites than can ever run at once: each waits for all others.

    Raises:
        Impossible: the pool has too few devices.
    """
    if job.gpus and job.gpu_memory_gib is not None:
        return  # they share devices
    kind = "gpu" if job.gpus else "cpu"
    devices = Device.objects.filter(pool=job.pool, kind=kind).exclude(health=Health.MISSING).count()
    sites = spec.local_count
    needed = sites * max(1, job.gpus) + (0 if job.gpus else 1)
    if devices < needed:
        what = Sentence("{count} sites" if job.gpus else "{count} sites and their server", count=sites)
        sentence = Sentence(
            "Pool {pool} has {devices} {kind}, and {what} need {needed} at once. Take fewer sites, or give each a share of a GPU by gpu_memory_gib.",
            pool=job.pool,
            devices=devices,
            kind=Sentence("GPUs" if job.gpus else "CPU slots"),
            what=what,
            needed=needed,
        )
        raise Impossible(sentence, fields={"sites": [sentence]})


def _submit_all(
    user: User,
    federation: Federation,
    spec: FederationSpec,
    fields: Mapping[str, Any],
    begins_with: str | None,
) -> None:
    """Submit all jobs, or none: what was submitted before an error is stopped again."""
    exchanges.make(federation.pk, spec.count)
    try:
        for number in (None, *range(spec.local_count)):
            job = _server(spec, fields, begins_with) if number is None else _site(spec, fields, number)
            env = {**(fields.get("env") or {}), FEDERATION_VARIABLE: str(federation.pk)}
            job |= {
                "name": f"{federation.name} {'server' if number is None else f'site {number}'}"[:180],
                "module": MODULE,
                "launcher": "direct",
                "env": env,
                "tags": [*(fields.get("tags") or []), "federated"],
            }
            source = fields["source"]["bundle"]
            intake.accept(user, intake.parse_spec(job), uploaded=source, beside=_keeper(federation, number))
    except BaseException:
        if Federation.objects.filter(pk=federation.pk).exists():
            why = fact(FederationFact.FAILED_AT_START)
            controller.end(federation, FederationState.FAILED, why)
            controller.stop_jobs(federation)
        else:
            exchanges.remove(federation.pk)
        raise


def _keeper(federation: Federation, number: int | None) -> Callable[[Job], None]:
    def keep(job: Job) -> None:
        with transaction.atomic():
            if number is None:  # the server is the first
                federation.save(force_insert=True)
            FederationMember.objects.create(federation=federation, number=number, job=job)

    return keep


def _site(spec: FederationSpec, fields: Mapping[str, Any], number: int) -> dict[str, Any]:
    words = ["--part=site", f"--site={number}", *spec.words()]
    names = list(fields.get("datasets") or [])
    if spec.site_datasets:
        own = spec.site_datasets[number]
        names.append(own)
        words.append(f"--data-path={{dataset:{_name_of(own)}}}")
    return {"gpus": 0, **fields, "datasets": names, "args": words}


def _server(spec: FederationSpec, fields: Mapping[str, Any], begins_with: str | None) -> dict[str, Any]:
    """The server's job: on the CPU, and from its newest round on if it is killed."""
    words = ["--part=server", *spec.words()]
    names = list(fields.get("datasets") or [])
    if spec.evaluate_on is not None:
        words.append(f"--evaluate-on={spec.evaluate_on}")
    if begins_with is not None:
        words.append(f"--weights={{dataset:{_name_of(begins_with)}}}")
        names.append(begins_with)
    kept = {name: value for name, value in fields.items() if name not in {"gpus", "gpu_memory_gib"}}
    if fields.get("gpus"):  # without a GPU it goes where CPU slots are
        kept.pop("pool", None)
    return {**kept, "gpus": 0, "datasets": names, "args": words}


def _name_of(reference: str) -> str:
    return reference.rpartition("/")[2].partition("@")[0]


def stop(user: User, federation: Federation) -> None:
    """Stop all jobs; repeating this is harmless.

    Raises:
        Forbidden: they may only look at it.
    """
    role = rights.right_in(user, federation.pool_id)
    if role == "viewer" or (role == "submitter" and federation.owner_id != user.pk):
        raise Forbidden("You may look at this federation, but not stop it. Ask an operator of its pool.")
    if not federation.has_ended:
        by = user.get_username()
        controller.end(federation, FederationState.STOPPED, fact(FederationFact.STOPPED_BY, by=by))
    controller.stop_jobs(federation)
