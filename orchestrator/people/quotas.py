"""Quotas: which limits apply to a person, whether a quota makes sense, and whether a submit fits."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from orchestrator.exceptions import Impossible, Sentence, TooMany, count_devices
from orchestrator.live import wakeups
from orchestrator.models import WAITING_STATES, Job, Lease, Quota
from orchestrator.people import audit
from orchestrator.spec.job_spec import JobSpec

WEEK = timedelta(days=7)
WEEK_H = 168
HOUR_S = 3600.0
MOST_QUEUED = 20_000  # default limit of one person
TRY_AGAIN_S = 60.0
UNLIMITED = 1_000_000  # devices
LIMITS = ("max_devices", "max_queued", "gpu_hours_a_week", "weight")
Place = tuple[int | None, str | None]  # user and pool, as in a quota's row


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one person in one pool, or over all pools."""

    max_devices: int | None = None
    max_queued: int | None = None
    gpu_hours_a_week: float | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A person's use and limits in one pool, or over all pools (pool None)."""

    pool: str | None
    devices: int
    queued: int
    gpu_hours: float
    limits: Limits


class Rulebook:
    """All quotas, read at once."""

    def __init__(self, rows: Collection[Quota]) -> None:
        self.rows: Mapping[Place, Quota] = {(row.user_id, row.pool_id): row for row in rows}
        self.pools = frozenset(row.pool_id for row in rows if row.pool_id is not None)

    @classmethod
    def read(cls) -> Self:
        return cls(list(Quota.objects.all()))

    def of(self, user_id: int, pool_id: str | None = None) -> Limits:
        """A person's limits; each one that they have not of their own is everybody's."""
        own, common = self.rows.get((user_id, pool_id)), self.rows.get((None, pool_id))
        limits = {}
        for name in LIMITS:
            value = getattr(own, name, None)
            limits[name] = getattr(common, name, None) if value is None else value
        return Limits(**limits)


def one_submit_at_a_time(user: AbstractBaseUser) -> None:
    """Lock this person's submits until the transaction ends.

    SQLite has one writer anyway. On PostgreSQL two submits could otherwise count the same jobs and both fit.
    """
    people = get_user_model().objects.select_for_update(no_key=True).filter(pk=user.pk)
    list(people.values_list("pk"))


def check_submit(user: AbstractBaseUser, spec: JobSpec, count: int = 1) -> None:
    """Check that ``count`` jobs like this may join the queue.

    Raises:
        Impossible: the limits never allow this job.
        TooMany: too many of the person's jobs wait now.
    """
    rules = Rulebook.read()
    for pool_id in (None, spec.pool):
        limits = rules.of(user.pk, pool_id)
        where = "" if pool_id is None else Sentence(" in pool {pool}", pool=pool_id)
        if limits.max_devices is not None and spec.gpus > limits.max_devices:
            sentence = Sentence(
                "Your limit{where} is {devices}; the job asks for {gpus}.",
                where=where,
                devices=count_devices(limits.max_devices),
                gpus=spec.gpus,
            )
            raise Impossible(sentence, fields={"gpus": [sentence]})
        most = limits.max_queued if limits.max_queued is not None or pool_id else MOST_QUEUED
        if most is not None:
            _check_queued(user, most, count, pool_id, where)


def _check_queued(user: AbstractBaseUser, most: int, count: int, pool_id: str | None, where: str) -> None:
    if count > most:
        sentence = Sentence(
            "Your limit{where} is {most:,} waiting jobs; this submit has {count:,}.",
            where=where,
            most=most,
            count=count,
        )
        raise Impossible(sentence, fields={"array": [sentence]})
    waiting = Job.objects.filter(owner_id=user.pk, state__in=WAITING_STATES)
    if pool_id is not None:
        waiting = waiting.filter(pool=pool_id)
    if (there := waiting.count()) + count > most:
        raise TooMany(
            Sentence(
                "Your limit{where} is {most:,} waiting jobs, and {there:,} wait. Submit again when some have started or ended.",
                where=where,
                most=most,
                there=there,
            ),
            retry_after_s=TRY_AGAIN_S,
        )


def week_gpu_s(user_ids: Collection[int], now: datetime | None = None) -> dict[tuple[int, str], float]:
    """GPU-seconds of these people in the last seven days, by person and pool.

    Shared devices count by share, jobs without a GPU not at all.
    """
    now = now or timezone.now()
    since = now - WEEK
    used: dict[tuple[int, str], float] = defaultdict(float)
    leases = (
        Lease.objects.filter(Q(ended_at=None) | Q(ended_at__gt=since), attempt__job__owner__in=user_ids)
        .exclude(attempt__job__spec_fields__gpus=0)
        .select_related("device", "attempt__job")
        .only(
            "memory_bytes",
            "started_at",
            "ended_at",
            "device__memory_bytes",
            "attempt__job__owner",
            "attempt__job__pool",
        )
    )
    for lease in leases:
        held = (lease.ended_at or now) - max(lease.started_at, since)
        job = lease.attempt.job
        used[job.owner_id, job.pool_id] += max(0.0, held.total_seconds()) * lease.part
    return used


def standings(user: AbstractBaseUser, now: datetime | None = None) -> list[Standing]:
    """A person's use and limits: over all pools first, then in each pool with its own limits."""
    rules = Rulebook.read()
    used = week_gpu_s([user.pk], now)
    held = Lease.objects.active().filter(attempt__job__owner=user.pk)
    waiting = Job.objects.filter(owner_id=user.pk, state__in=WAITING_STATES)
    rows = []
    for pool_id in (None, *sorted(rules.pools)):
        limits = rules.of(user.pk, pool_id)
        if pool_id is not None and limits == Limits():
            continue
        gpu_s = sum(part for (_, pool), part in used.items() if pool_id in (None, pool))
        leases = held if pool_id is None else held.filter(attempt__job__pool=pool_id)
        jobs = waiting if pool_id is None else waiting.filter(pool=pool_id)
        rows.append(Standing(pool_id, leases.count(), jobs.count(), gpu_s / HOUR_S, limits))
    return rows


def set_limits(
    user: User, changes: Mapping[str, float | None], *, by: AbstractBaseUser, address: str = ""
) -> Quota | None:
    """Change a person's own limits over all pools; without any that remains there is no quota.

    Raises:
        Impossible: a limit makes no sense.
    """
    with transaction.atomic():
        quota = Quota.objects.select_for_update(of=("self",)).filter(user=user, pool=None).first()
        quota = quota or Quota(user=user, pool=None)
        if all(getattr(quota, name) == value for name, value in changes.items()):
            return quota if quota.pk else None
        for name, value in changes.items():
            setattr(quota, name, value)
        if any(getattr(quota, name) is not None for name in LIMITS):
            check_quota(quota)
            quota.save()
        elif quota.pk is not None:
            quota.delete()
        audit.record(by, "quota.changed", f"quota of {user.get_username()}", describe(quota), address=address)
        wakeups.schedule()
    return None if quota.pk is None else quota


@dataclass(frozen=True, slots=True)
class DevicesLeft:
    """How many more devices a limit lets a person hold now, and the limit in words."""

    devices: int
    limit: Sentence


def devices_left(user_id: int, now: datetime | None = None) -> dict[str | None, DevicesLeft]:
    """What a person's limits leave them, by pool; None: over all pools, where CPU slots do not count.

    Places without a limit are missing.
    """
    rules = Rulebook.read()
    places = {pool: rules.of(user_id, pool) for pool in (None, *sorted(rules.pools))}
    places = {pool: each for pool, each in places.items() if _limitsdevices(each)}
    if not places:
        return {}
    leases = Lease.objects.active().filter(attempt__job__owner=user_id)
    rows = list(leases.values_list("attempt__job__pool_id", "attempt__job__spec_fields__gpus"))
    by_hours = any(each.gpu_hours_a_week is not None for each in places.values())
    used = week_gpu_s([user_id], now) if by_hours else {}
    left = {}
    for place, limits in places.items():
        held = sum(pool == place or (place is None and gpus != 0) for pool, gpus in rows)
        gpu_s = sum(part for (_, pool), part in used.items() if place in (None, pool))
        left[place] = _left(limits, held, gpu_s)
    return left


def _limitsdevices(limits: Limits) -> bool:
    return limits.max_devices is not None or limits.gpu_hours_a_week is not None


def _left(limits: Limits, held: int, gpu_s: float) -> DevicesLeft:
    hours, most = limits.gpu_hours_a_week, limits.max_devices
    if hours is not None and (gpu_s >= hours * HOUR_S or most is None):
        used_up = gpu_s >= hours * HOUR_S
        limit = Sentence("{hours:g} GPU-hours in seven days", hours=hours)
        return DevicesLeft(0 if used_up else UNLIMITED, limit)
    return DevicesLeft(max(0, (most or 0) - held), count_devices(most or 0))


def check_quota(quota: Quota) -> None:
    """Check that a quota makes sense.

    Raises:
        Impossible: it limits nothing, contradicts itself, or contradicts another quota.
    """
    given = {name: getattr(quota, name) for name in LIMITS if getattr(quota, name) is not None}
    if not given:
        raise _contradiction(
            "max_devices",
            Sentence("This quota limits nothing. Give one of {limits}.", limits=", ".join(LIMITS)),
        )
    for name, value in given.items():
        if not 0 < value <= 1_000_000:
            raise _contradiction(
                name,
                Sentence(
                    "{name} is {value:g}: jobs would be accepted and could never start. Give more than 0; to keep somebody from submitting, make them a viewer.",
                    name=name,
                    value=value,
                ),
            )
    if quota.pool_id is not None and quota.weight is not None:
        raise _contradiction(
            "weight", "The weight of a fair share applies to all pools. Set it without a pool."
        )
    if quota.max_devices and quota.gpu_hours_a_week and quota.gpu_hours_a_week > quota.max_devices * WEEK_H:
        raise _contradiction(
            "gpu_hours_a_week",
            Sentence(
                "{devices} for a whole week make {max_devices} GPU-hours, so a limit of {gpu_hours_a_week:g} has no effect.",
                devices=count_devices(quota.max_devices),
                max_devices=quota.max_devices * WEEK_H,
                gpu_hours_a_week=quota.gpu_hours_a_week,
            ),
        )
    _check_with_others(quota)


def _check_with_others(quota: Quota) -> None:
    """Check that the limit in one pool does not exceed the limit over all pools."""
    others = Quota.objects.exclude(pk=quota.pk).filter(user=quota.user_id)
    if quota.pool_id is None:
        pairs = [(each, quota) for each in others.exclude(pool=None)]
    else:
        pairs = [(quota, each) for each in others.filter(pool=None)]
    for inside, overall in pairs:
        for name in ("max_devices", "max_queued", "gpu_hours_a_week"):
            part, whole = getattr(inside, name), getattr(overall, name)
            if part is not None and whole is not None and part > whole:
                raise _contradiction(
                    name,
                    Sentence(
                        "{name} is {part:g} in pool {pool_id} but {whole:g} over all pools. Give at most that much in the pool.",
                        name=name,
                        part=part,
                        pool_id=inside.pool_id,
                        whole=whole,
                    ),
                )


def _contradiction(name: str, sentence: str) -> Impossible:
    return Impossible(sentence, fields={name: [sentence]})


def describe(quota: Quota) -> str:
    """Describe a quota's limits in words."""
    given = [f"{name} {getattr(quota, name):g}" for name in LIMITS if getattr(quota, name) is not None]
    return f"{', '.join(given) or 'no limits'}."
