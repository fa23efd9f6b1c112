"""Limits of people: which apply to whom, whether they make sense, and what a submit may still do."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q
from django.utils import timezone

from orchestrator.exceptions import Impossible, TooMany
from orchestrator.models import WAITING_STATES, Job, Lease, Quota
from orchestrator.spec.job_spec import JobSpec

WEEK = timedelta(days=7)
WEEK_H = 168
HOUR_S = 3600.0
MOST_QUEUED = 20_000  # of one person, where no quota says otherwise (T23)
TRY_AGAIN_S = 60.0
LIMITS = ("max_devices", "max_queued", "gpu_hours_a_week", "weight")
Place = tuple[int | None, str | None]  # user and pool, as in a quota's row


@dataclass(frozen=True, slots=True)
class Limits:
    """What one person may use in one pool, or (pool None) over all."""

    max_devices: int | None = None
    max_queued: int | None = None
    gpu_hours_a_week: float | None = None
    weight: float | None = None


class Rulebook:
    """All quotas, read once."""

    def __init__(self, rows: Collection[Quota]) -> None:
        self.rows: Mapping[Place, Quota] = {(row.user_id, row.pool_id): row for row in rows}
        self.pools = frozenset(row.pool_id for row in rows if row.pool_id is not None)

    @classmethod
    def read(cls) -> Self:
        return cls(list(Quota.objects.all()))

    def of(self, user_id: int, pool_id: str | None = None) -> Limits:
        """A person's own limits, and where there is none what holds for everybody."""
        own, common = self.rows.get((user_id, pool_id)), self.rows.get((None, pool_id))
        found = {}
        for name in LIMITS:
            value = getattr(own, name, None)
            found[name] = getattr(common, name, None) if value is None else value
        return Limits(**found)


def one_submit_at_a_time(user: AbstractBaseUser) -> None:
    """Let this transaction alone count and write jobs of this person until its end.

    On SQLite it is alone anyway; PostgreSQL would let two count the same jobs, and both be the last.
    """
    people = get_user_model().objects.select_for_update(no_key=True).filter(pk=user.pk)
    list(people.values_list("pk"))


def check_submit(user: AbstractBaseUser, spec: JobSpec, count: int = 1) -> None:
    """Whether so many jobs like this may join the queue.

    Raises:
        Impossible: the limits could never let it run.
        TooMany: not now; enough of theirs wait.
    """
    rules = Rulebook.read()
    for pool_id in (None, spec.pool):
        limits = rules.of(user.pk, pool_id)
        where = "" if pool_id is None else f" in pool {pool_id}"
        if limits.max_devices is not None and spec.gpus > limits.max_devices:
            sentence = f"Your limit{where} is {_devices(limits.max_devices)}; {spec.gpus} were asked for."
            raise Impossible(sentence, fields={"gpus": [sentence]})
        most = limits.max_queued if limits.max_queued is not None or pool_id else MOST_QUEUED
        if most is not None:
            _check_queued(user, most, count, pool_id, where)


def _check_queued(user: AbstractBaseUser, most: int, count: int, pool_id: str | None, where: str) -> None:
    if count > most:
        sentence = f"Your limit{where} is {most:,} waiting jobs; these are {count:,}."
        raise Impossible(sentence, fields={"array": [sentence]})
    waiting = Job.objects.filter(owner_id=user.pk, state__in=WAITING_STATES)
    if pool_id is not None:
        waiting = waiting.filter(pool=pool_id)
    if (there := waiting.count()) + count > most:
        raise TooMany(
            f"Your limit{where} is {most:,} waiting jobs and {there:,} wait; "
            "submit again when some have started or ended.",
            retry_after_s=TRY_AGAIN_S,
        )


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def week_gpu_s(user_ids: Collection[int], now: datetime | None = None) -> dict[tuple[int, str], float]:
    """GPU-seconds of these people in the last seven days, by person and pool; of shared devices their part."""
    now = now or timezone.now()
    since = now - WEEK
    used: dict[tuple[int, str], float] = defaultdict(float)
    leases = (
        Lease.objects.filter(Q(ended_at=None) | Q(ended_at__gt=since), attempt__job__owner__in=user_ids)
        .select_related("device", "attempt__job")
        .only(
            *("memory_bytes", "started_at", "ended_at", "device__memory_bytes"),
            *("attempt__job__owner", "attempt__job__pool"),
        )
    )
    for lease in leases:
        held = (lease.ended_at or now) - max(lease.started_at, since)
        job = lease.attempt.job
        used[job.owner_id, job.pool_id] += max(0.0, held.total_seconds()) * lease.part
    return used


def standing(user: AbstractBaseUser, now: datetime | None = None) -> list[dict[str, Any]]:
    """What a person uses of their limits: over all pools first, then in each pool with limits of its own."""
    rules = Rulebook.read()
    used = week_gpu_s([user.pk], now)
    held = Lease.objects.active().filter(attempt__job__owner=user.pk)
    waiting = Job.objects.filter(owner_id=user.pk, state__in=WAITING_STATES)
    found = []
    for pool_id in (None, *sorted(rules.pools)):
        limits = rules.of(user.pk, pool_id)
        if pool_id is not None and limits == Limits():
            continue
        place = {} if pool_id is None else {"pool": pool_id}
        gpu_s = sum(part for (_, pool), part in used.items() if pool_id in (None, pool))
        found.append(
            {
                "pool": pool_id,
                "devices": held.filter(
                    **{f"attempt__job__{name}": pool for name, pool in place.items()}
                ).count(),
                "queued": waiting.filter(**place).count(),
                "gpu_hours": gpu_s / HOUR_S,
                **{name: getattr(limits, name) for name in LIMITS},
            }
        )
    return found


def check_quota(quota: Quota) -> None:
    """
    Raises:
        Impossible: it limits nothing, contradicts itself, or contradicts another quota.
    """
    given = {name: getattr(quota, name) for name in LIMITS if getattr(quota, name) is not None}
    if not given:
        raise _contradiction("max_devices", f"It limits nothing; give one of {', '.join(LIMITS)}.")
    for name, value in given.items():
        if not 0 < value <= 1_000_000:
            raise _contradiction(
                name,
                f"{name} is {value:g}: jobs would be taken and could never start. "
                "Give more than 0, or make somebody who shall not submit a viewer.",
            )
    if quota.pool_id is not None and quota.weight is not None:
        raise _contradiction(
            "weight", "The weight of a fair share holds in all pools; set it without a pool."
        )
    if quota.max_devices and quota.gpu_hours_a_week and quota.gpu_hours_a_week > quota.max_devices * WEEK_H:
        raise _contradiction(
            "gpu_hours_a_week",
            f"{_devices(quota.max_devices)} all week long are {quota.max_devices * WEEK_H} GPU-hours, "
            f"so a limit of {quota.gpu_hours_a_week:g} would limit nothing.",
        )
    _check_with_others(quota)


def _check_with_others(quota: Quota) -> None:
    """What somebody may use in one pool is no more than they may use altogether."""
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
                    f"{name} is {part:g} in pool {inside.pool_id} but {whole:g} over all pools; "
                    "the part cannot be larger than the whole.",
                )


def _contradiction(name: str, sentence: str) -> Impossible:
    return Impossible(sentence, fields={name: [sentence]})


def say(quota: Quota) -> str:
    """The limits of a quota in words."""
    given = [f"{name} {getattr(quota, name):g}" for name in LIMITS if getattr(quota, name) is not None]
    return f"{', '.join(given) or 'no limits'}."
