"""Checks of a submit: pool, devices, datasets, secrets, code and other jobs that the job refers to."""

import re
from collections.abc import Container
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError as InvalidValue
from django.db.models import QuerySet
from django.utils import timezone

from orchestrator.exceptions import DevicesAway, Impossible, Malformed, Sentence, count_devices
from orchestrator.jobs import retention
from orchestrator.jobs.environments.images.making import is_allowed
from orchestrator.jobs.launch import isolation
from orchestrator.jobs.launch.images import NO_SANDBOX
from orchestrator.jobs.submission import named_data, session_limits
from orchestrator.live.readings import read_now
from orchestrator.models import CPU_POOL, AdminState, Device, Health, Job, Lender, Pool
from orchestrator.people import rights, secrets
from orchestrator.sharing import projects
from orchestrator.spec.field_types import Dependency
from orchestrator.spec.git_source import folder_of, is_below
from orchestrator.spec.images import read_image
from orchestrator.spec.job_spec import GIB, JobSpec

LONGEST_DELAY = timedelta(days=366)
_SHORT_ID = re.compile(r"[0-9a-f]{6,12}", re.ASCII)


def resolve(
    user: AbstractBaseUser,
    spec: JobSpec,
    *,
    asked_by: AbstractBaseUser | None = None,
    continues: bool = False,
) -> JobSpec:
    """Check what a job refers to, and fill in the versions of datasets and the full ids of jobs.

    Args:
        user: the owner of the job.
        asked_by: who submits the job for them; this person's role limits its priority.
        continues: the job belongs to a sweep or service that was accepted in its project, which its owner may have
            left since.

    Raises:
        Impossible: something does not exist, or can never fit the job.
        Forbidden: this person may not use it.
        TooMany: their files use all of their share of the disk.
    """
    isolation.check_where_jobs_run()
    retention.check_disk(user, settings.ENVIRONMENT.user_disk_gib)
    spec = spec.model_copy(update={"pool": _pool_of(spec)})
    _check_pool(user, spec, asked_by or user)
    _check_delay(spec)
    _check_secrets(user, spec)
    if not continues:
        check_shown(user, spec, {"project", "visibility"})
    _check_source(user, spec)
    _check_image(spec)
    pinned = named_data.pin(user, spec)
    return spec.model_copy(update={"datasets": pinned, "depends_on": _find_dependencies(user, spec)})


def check_bundle(user: AbstractBaseUser, sha256: str | None) -> None:
    """Refuse a bundle of other people's jobs: knowing its hash gives no right to run, and so read, the code."""
    if not Job.objects.visible_to(user).filter(bundle=sha256).exists():
        raise no_bundle(sha256)


def check_own(spec: JobSpec) -> None:
    """Refuse a job that only a service may begin: without one, nothing would send it requests or end it.

    Raises:
        Malformed: it is a replica of a service.
    """
    if spec.kind == "service":
        sentence = (
            "a replica is begun by its service; create the service with berth service or POST /services"
        )
        raise Malformed(Sentence("kind: {sentence}.", sentence=sentence), fields={"kind": [sentence]})


def check_shown(owner: AbstractBaseUser, spec: JobSpec, given: Container[str]) -> None:
    """Check a job's project and who shall see it, as far as these are given.

    Raises:
        Impossible: its owner is not in the project, or it is to be seen by the members of none.
    """
    if spec.project is not None and "project" in given:
        projects.check_use(owner, spec.project)
    if spec.project is None and spec.visibility == "project" and "visibility" in given:
        raise _impossible(
            "visibility", "The job has no project whose members could see it; name one as project."
        )


def visibility_of(spec: JobSpec, pool: Pool) -> str:
    """Who sees a job: as it says itself, else as its pool says, else as the server's setting says."""
    return spec.visibility or pool.visibility or settings.ENVIRONMENT.visibility


def no_bundle(sha256: str | None) -> Impossible:
    return _impossible(
        "source",
        Sentence(
            "You have no bundle {bundle}… on this server; upload the code again.", bundle=(sha256 or "")[:12]
        ),
    )


def _impossible(name: str, sentence: str) -> Impossible:
    return Impossible(sentence, fields={name: [sentence]})


def _pool_of(spec: JobSpec) -> str:
    """The pool of the job; one that needs no GPU and names no other pool goes where CPU slots are.

    Raises:
        Impossible: the pool has no CPU slots, or the server has none.
    """
    if spec.gpus > 0:
        return spec.pool
    slots = Device.objects.filter(kind="cpu").exclude(health=Health.MISSING)
    pools = set(slots.values_list("pool_id", flat=True))
    if spec.pool in pools:
        return spec.pool
    if spec.pool == JobSpec.model_fields["pool"].default and CPU_POOL in pools:
        return CPU_POOL
    if not pools:
        sentence = "This server has no CPU slots for jobs without a GPU; its operator sets BERTH_CPU_SLOTS."
        if Device.objects.filter(kind="cpu").exists():
            sentence = "The CPU slots of this server are missing now; try again later, or ask its operator."
            raise DevicesAway(sentence, fields={"gpus": [sentence]})
    else:
        sentence = Sentence(
            "Pool {pool} has no CPU slots for a job without a GPU; these have: {pools}.",
            pool=spec.pool,
            pools=", ".join(sorted(pools)),
        )
    raise _impossible("gpus", sentence)


def _check_pool(user: AbstractBaseUser, spec: JobSpec, asked_by: AbstractBaseUser) -> None:
    """Check that the pool exists, is open to this person, and can ever fit the job.

    Raises:
        Impossible: the pool does not exist, or can never fit the job.
        Forbidden: this person may not use it.
    """
    pool = Pool.objects.select_related("lender").filter(pk=spec.pool).first()
    if pool is None:
        known = ", ".join(Pool.objects.values_list("name", flat=True)) or Sentence("none yet")
        raise _impossible(
            "pool", Sentence("There is no pool {pool!r}; known: {known}.", pool=spec.pool, known=known)
        )
    rights.check_submit(user, pool)
    rights.check_priority(asked_by, pool.name, spec.priority)
    session_limits.check(spec, pool)
    _check_devices(spec, pool)
    if spec.python is not None and spec.python not in pool.pythons:
        known = ", ".join(sorted(pool.pythons)) or Sentence("none")
        raise _impossible(
            "python",
            Sentence(
                "Pool {pool} has no interpreter {python!r}; registered: {known}.",
                pool=pool.name,
                python=spec.python,
                known=known,
            ),
        )


def _check_devices(spec: JobSpec, pool: Pool) -> None:
    """Check that the pool has as many devices as a job needs, and as large ones.

    Raises:
        DevicesAway: it would with those that are disabled or missing now.
        Impossible: it has not.
    """
    there = pool.devices.exclude(admin_state=AdminState.DISABLED).exclude(health=Health.MISSING)
    sizes = list(there.values_list("memory_bytes", flat=True))
    least = spec.min_gpus or spec.device_count
    lent = _lent(pool)
    if lent >= least:  # more may come, of the size that those have had that came before
        sizes = sorted(pool.devices.values_list("memory_bytes", flat=True))[-1:] * max(lent, len(sizes))
    count = len(sizes) or lent
    wanted = spec.gpu_memory_bytes
    fit = sum(size >= wanted for size in sizes) if wanted is not None and sizes else count
    if fit >= least:
        return
    if count < least:
        has = count_devices(count) if count else Sentence("no devices")
        name, sentence = (
            "gpus",
            Sentence("Pool {pool} has {has}; {least} were asked for.", pool=pool.name, has=has, least=least)
            if least > 1
            else Sentence("Pool {pool} has {has}; one was asked for.", pool=pool.name, has=has),
        )
    else:
        has = (
            Sentence("only {count} devices", count=fit)
            if fit > 1
            else Sentence("only one device" if fit else "no device")
        )
        name, sentence = (
            "gpu_memory_gib",
            Sentence(
                "Pool {pool} has {has} with {gpu_memory_gib:g} GiB; the largest has {sizes:.1f} GiB.",
                pool=pool.name,
                has=has,
                gpu_memory_gib=spec.gpu_memory_gib,
                sizes=max(sizes) / GIB,
            ),
        )
    if pool.devices.filter(memory_bytes__gte=wanted or 0).count() < least:
        raise _impossible(name, sentence)
    sentence = Sentence(
        "{problem} It has enough once those that are disabled or missing are back.", problem=sentence
    )
    raise DevicesAway(sentence, fields={name: [sentence]})


def _lent(pool: Pool) -> int:
    """The devices of one allocation of the system that lends to a pool; 0 without one."""
    lender: Lender | None = getattr(pool, "lender", None)
    return 0 if lender is None or lender.most_pilots == 0 else lender.devices


def _check_image(spec: JobSpec) -> None:
    if spec.image is None:
        return
    if not (read_now().sandbox or isolation.reading())["level"]:
        raise _impossible(
            "image",
            Sentence("{problem}; ask an administrator, or leave image out.", problem=Sentence(NO_SANDBOX)),
        )
    if not is_allowed(image := read_image(spec.image)):
        raise _impossible(
            "image",
            Sentence(
                "{path} is in no folder that images may come from; an administrator can allow its folder (BERTH_IMAGE_FOLDERS).",
                path=image.path,
            ),
        )


def _check_delay(spec: JobSpec) -> None:
    if spec.not_before is not None and spec.not_before > timezone.now() + LONGEST_DELAY:
        raise _impossible("not_before", "A job can be delayed by a year at most; give an earlier time.")


def _check_secrets(user: AbstractBaseUser, spec: JobSpec) -> None:
    if spec.secrets and (lacking := secrets.missing(user, spec.secrets)):
        raise _impossible(
            "secrets",
            Sentence(
                "You have no secret {lacking!r}; store it on your account page.", lacking=lacking[0][:80]
            ),
        )


def _check_source(user: AbstractBaseUser, spec: JobSpec) -> None:
    """Check what a submit tells of code to fetch: its key, and that the operator named its folder.

    Raises:
        Impossible: there is no such secret, or the folder is not for jobs.
    """
    source = spec.source
    if source is None or source.git is None:
        return
    if source.key is not None and secrets.missing(user, [source.key]):
        raise _impossible(
            "source",
            Sentence(
                "You have no secret {key!r}; store it with: berth secret set NAME < key-file",
                key=source.key[:80],
            ),
        )
    place = folder_of(source.git)
    if place is not None and not is_below(place, settings.ENVIRONMENT.git_roots):
        raise _impossible(
            "source",
            Sentence(
                "This server fetches no code from {git}; an administrator can allow the folder with BERTH_GIT_ROOTS.",
                git=source.git[:200],
            ),
        )


def _find_dependencies(user: AbstractBaseUser, spec: JobSpec) -> list[Dependency]:
    found = []
    for each in spec.depends_on:
        named = list(_named(user, each.job)[:2])
        if len(named) != 1:
            several = Sentence("There are several jobs" if named else "There is no job")
            raise _impossible(
                "depends_on", Sentence("{several} {job!r} to depend on.", several=several, job=each.job)
            )
        found.append(each.model_copy(update={"job": str(named[0].pk)}))
    return found


def _named(user: AbstractBaseUser, text: str) -> QuerySet[Job]:
    """Find jobs by id, or by its last characters, as pages show it."""
    jobs = Job.objects.visible_to(user).only("pk")
    if _SHORT_ID.fullmatch(text):
        return jobs.filter(id__endswith=text)
    try:
        return jobs.filter(pk=text)
    except InvalidValue:  # a text that is no id
        return jobs.none()
