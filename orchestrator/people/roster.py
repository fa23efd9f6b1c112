"""Everybody with an account: role, pools, limits, use in the last seven days, and when they were last seen."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.db.models import Max, Prefetch, Q, QuerySet

from orchestrator.models import Person, Quota, Right, Role
from orchestrator.people.quotas import HOUR_S, week_gpu_s


@dataclass(frozen=True, slots=True)
class Member:
    """One person as operators see them."""

    user: User
    role: Role
    waits: bool  # a newcomer whom nobody approved yet
    by_group: bool  # the role is the identity provider's group's, and follows it at each sign-in
    service: bool  # a program's account
    pools: dict[str, Right]
    quota: Quota | None  # their own over all pools
    gpu_hours: float  # in the last seven days
    last_seen: datetime | None


def find_people(q: str = "", *, waits: bool | None = None) -> QuerySet[User]:
    """People whose user name, name or mail address has this text."""
    overall = Prefetch("quotas", Quota.objects.filter(pool=None), to_attr="overall_quotas")
    rows = (
        User.objects.select_related("person", "last_seen")
        .prefetch_related("pool_rights", overall)
        .annotate(token_used_at=Max("tokens__last_used_at"))
    )
    for word in q.split():
        rows = rows.filter(
            Q(username__icontains=word)
            | Q(first_name__icontains=word)
            | Q(last_name__icontains=word)
            | Q(email__icontains=word)
        )
    if waits is None:
        return rows
    waiting = Q(person__waits=True, is_active=True)
    return rows.filter(waiting) if waits else rows.exclude(waiting)


def members(users: Collection[User]) -> list[Member]:
    """What operators see of people that ``find_people`` found."""
    used: dict[int, float] = {}
    for (user_id, _), gpu_s in week_gpu_s([user.pk for user in users]).items():
        used[user_id] = used.get(user_id, 0.0) + gpu_s
    return [_member(user, used.get(user.pk, 0.0) / HOUR_S) for user in users]


def _member(user: User, gpu_hours: float) -> Member:
    person: Person | None = getattr(user, "person", None)
    role = Role.SUBMITTER if person is None else Role(person.role)
    page_seen_at = getattr(getattr(user, "last_seen", None), "at", None)
    seen = (user.last_login, getattr(user, "token_used_at", None), page_seen_at)
    quota: list[Quota] = getattr(user, "overall_quotas", [])
    return Member(
        user,
        Role.ADMIN if user.is_staff else role,
        person is not None and person.waits,
        person is not None and person.by_group,
        person is not None and person.service,
        {row.pool_id: Right(row.right) for row in user.pool_rights.all()},
        quota[0] if quota else None,
        gpu_hours,
        max((at for at in seen if at), default=None),
    )
