"""What is kept for the next jobs: environments and caches, how large they are, who used them last, and their removal."""

import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import orjson
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, User

from orchestrator.exceptions import Conflict, Forbidden, NotFound, Sentence
from orchestrator.jobs import shared_models
from orchestrator.jobs.environments.bytecode import remove_unused
from orchestrator.models import FINAL_STATES, Environment, EnvironmentState, Job, Role
from orchestrator.people import rights
from orchestrator.store.files.durable import write_durably
from orchestrator.store.files.listing import size_of
from orchestrator.store.files.untrusted import remove_tree

logger = logging.getLogger(__name__)

SIZES = "sizes.json"
SHARED = ("cache", "bytecode")  # of the environments' folder; used by all environments
_GIT = "git"  # a person's repositories, beside the folders of their cache


@dataclass(frozen=True, slots=True)
class KeptEnvironment:
    """Built packages or a container image, with the jobs of theirs that this reader may see."""

    key: str
    origins: list[str]  # of an image its names
    packages: list[dict[str, str]]
    own_torch: bool
    digest: str  # of a container image; empty: packages
    size_bytes: int | None  # None: not measured yet
    jobs: int
    last_job: Job
    is_in_use: bool
    may_remove: bool


@dataclass(frozen=True, slots=True)
class KeptCache:
    """What jobs of one person downloaded and compiled."""

    owner: User
    folders: Mapping[str, int]  # bytes by name: huggingface, torch, triton, xdg, git
    used_at: datetime | None
    is_in_use: bool

    @property
    def size_bytes(self) -> int:
        return sum(self.folders.values())


@dataclass(frozen=True, slots=True)
class Kept:
    """All that one reader may see."""

    measured_at: datetime | None
    environments: list[KeptEnvironment]
    caches: list[KeptCache]
    shared: Mapping[str, int]


class CacheSizes(TypedDict):
    """What one person's caches take."""

    folders: dict[str, int]  # bytes
    used_s: float  # when they were last used


def measure(now: datetime) -> None:
    """Count the bytes of all of it; pages read the result, because this takes seconds."""
    places = settings.HOME.environments
    known = _sizes().get("built", {})
    built = {
        place.name: known.get(place.name) or size_of(place)[0] for place in _folders(places.root / "built")
    }
    caches: dict[str, CacheSizes] = {}
    for home in _folders(settings.HOME.caches):
        counted = {folder.name: size_of(folder) for folder in _folders(home)}
        caches[home.name] = {
            "folders": {name: size for name, (size, _) in counted.items() if size},
            "used_s": max((used_s for _, used_s in counted.values()), default=0),
        }
    for home in _folders(settings.HOME.mirrors):
        size_bytes, used_s = size_of(home)
        entry = caches.setdefault(home.name, {"folders": {}, "used_s": 0})
        entry["folders"][_GIT] = size_bytes
        entry["used_s"] = max(entry["used_s"], used_s)
    shared = {name: size_of(places.root / name)[0] for name in SHARED}
    shared["models"] = sum(size_of(folder)[0] for folder in shared_models.folders())
    if built or caches or shared["models"]:
        found = {"measured_s": now.timestamp(), "built": built, "caches": caches, "shared": shared}
        places.root.mkdir(parents=True, exist_ok=True)
        write_durably(places.root / SIZES, orjson.dumps(found))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _sizes() -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = orjson.loads((settings.HOME.environments.root / SIZES).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found


def kept(user: AbstractBaseUser) -> Kept:
    """What a person may see: environments of jobs that they see, and their own cache; admins see all."""
    sizes = _sizes()
    measured_s = sizes.get("measured_s")
    return Kept(
        measured_at=None if measured_s is None else _moment(measured_s),
        environments=_environments(user, sizes.get("built", {})),
        caches=_caches(user, sizes.get("caches", {})),
        shared=sizes.get("shared", {}),
    )


def _environments(user: AbstractBaseUser, sizes: Mapping[str, int]) -> list[KeptEnvironment]:
    rows: dict[str, list[Environment]] = {}
    for row in Environment.objects.filter(state=EnvironmentState.READY).exclude(key="").defer("lock"):
        rows.setdefault(row.key, []).append(row)
    found = []
    for key, same in rows.items():
        jobs = Job.objects.filter(environment__in=same)
        visible = jobs.visible_to(user).select_related("owner").order_by("-submitted_at")
        last = visible.first()
        if last is None or not settings.HOME.environments.built(key).root.is_dir():
            continue
        entry = KeptEnvironment(
            key=key,
            origins=sorted({row.origin for row in same}),
            packages=same[0].packages,
            own_torch=same[0].own_torch,
            digest=same[0].lock if same[0].image else "",
            size_bytes=sizes.get(key),
            jobs=visible.count(),
            last_job=last,
            is_in_use=jobs.exclude(state__in=FINAL_STATES).exists(),
            may_remove=_may_remove(user, same),
        )
        found.append(entry)
    return sorted(found, key=lambda each: each.last_job.submitted_at, reverse=True)


def _may_remove(user: AbstractBaseUser, rows: Iterable[Environment]) -> bool:
    """Admins, and a person whose jobs alone use it."""
    if rights.role_of(user) == Role.ADMIN:
        return True
    others = Job.objects.filter(environment__in=list(rows)).exclude(owner_id=user.pk)
    return rights.role_of(user) != Role.VIEWER and not others.exists()


def _caches(user: AbstractBaseUser, sizes: Mapping[str, Any]) -> list[KeptCache]:
    is_admin = rights.role_of(user) == Role.ADMIN
    owners = User.objects.filter(pk__in=[int(number) for number in sizes if number.isdigit()])
    found = [
        KeptCache(
            owner=owner,
            folders=dict(sorted(sizes[str(owner.pk)]["folders"].items())),
            used_at=_moment(used_s) if (used_s := sizes[str(owner.pk)]["used_s"]) else None,
            is_in_use=_has_devices(owner.pk),
        )
        for owner in (owners if is_admin else owners.filter(pk=user.pk))
    ]
    return sorted((each for each in found if each.folders), key=lambda each: -each.size_bytes)


def _has_devices(owner: int) -> bool:
    return Job.objects.leased().filter(owner_id=owner).exists()


def remove_environment(user: AbstractBaseUser, key: str) -> None:
    """Remove built packages; a job that needs them again has them built again, from the same lock.

    Raises:
        NotFound: it does not exist, or the person may not see it.
        Forbidden: jobs of others use it, too.
        Conflict: a job that waits or runs needs it.
    """
    rows = list(Environment.objects.filter(key=key))
    place = settings.HOME.environments.built(key).root
    jobs = Job.objects.filter(environment__in=rows)
    if not rows or not jobs.visible_to(user).exists() or not place.is_dir():
        raise NotFound("There is no such environment.")
    if not _may_remove(user, rows):
        raise Forbidden("Jobs of other people use this environment, too. Ask an admin to remove it.")
    if jobs.exclude(state__in=FINAL_STATES).exists():
        raise Conflict("A job that waits or runs needs this environment. Remove it when the job has ended.")
    _remove(place, settings.HOME.environments.work)
    remove_unused(settings.HOME.environments.root)
    _forget("built", key)


def clear_cache(user: AbstractBaseUser, username: str) -> None:
    """Remove what jobs of a person downloaded and compiled.

    Raises:
        NotFound: there is no such person for this reader.
        Forbidden: it is another person's.
        Conflict: one of their jobs runs.
    """
    owner = User.objects.filter(username=username).first()
    is_admin = rights.role_of(user) == Role.ADMIN
    if owner is None or (owner.pk != user.pk and not is_admin):
        raise NotFound(Sentence("You have no cache of {username!r} to clear.", username=username[:80]))
    if rights.role_of(user) == Role.VIEWER:
        raise Forbidden("Your role is viewer, which is read-only. Ask an admin for the role submitter.")
    if _has_devices(owner.pk):
        raise Conflict("A job that runs uses this cache. Clear it when the job has ended.")
    for place in (settings.HOME.cache_of(owner.pk), settings.HOME.mirrors / str(owner.pk)):
        if place.is_dir():
            _remove(place, settings.HOME.environments.work)
    _forget("caches", str(owner.pk))


def _remove(place: Path, work: Path) -> None:
    """Remove a folder, first by a rename, so that readers see it whole or not at all."""
    logger.info("Removing %s.", place)
    work.mkdir(parents=True, exist_ok=True)
    aside = work / f"removed-{secrets.token_hex(4)}"
    place.rename(aside)
    remove_tree(aside)


def _forget(group: str, name: str) -> None:
    """Take what was removed out of the sizes, so that the page shows it gone at once."""
    sizes = dict(_sizes())
    if name in sizes.get(group, {}):
        sizes[group] = {each: value for each, value in sizes[group].items() if each != name}
        write_durably(settings.HOME.environments.root / SIZES, orjson.dumps(sizes))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
