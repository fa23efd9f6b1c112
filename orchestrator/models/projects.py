"""Projects: people who see each other's jobs."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.models.people import Person, operated_pools
from orchestrator.models.pools import Visibility

_Rows = TypeVar("_Rows", bound=models.QuerySet[Any])


class MemberRole(models.TextChoices):
    MEMBER = "member", "sees the project's jobs"
    OWNER = "owner", "also says who is a member"


class Project(models.Model):
    """A name that jobs carry; members see each other's jobs that have it."""

    name = models.SlugField(primary_key=True, max_length=64)
    description = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class ProjectMember(models.Model):
    """One person in one project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=MemberRole, default=MemberRole.MEMBER)
    since = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["project", "user"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "user"], name="one_membership_a_person_and_project")
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.project_id}: {self.role}"


def shared_with(user: AbstractBaseUser | AnonymousUser) -> models.Q:
    """The jobs that others share with this person; nothing for a newcomer whom nobody has approved."""
    user_id = user.pk or 0
    if Person.objects.filter(user_id=user_id, waits=True).exists():
        return models.Q(pk__in=[])
    found = list(ProjectMember.objects.filter(user_id=user_id).values_list("project_id", flat=True))
    lab = models.Q(visibility=Visibility.LAB)
    return lab | models.Q(visibility=Visibility.PROJECT, project__in=found) if found else lab


def visible_rows(
    rows: _Rows, user: AbstractBaseUser | AnonymousUser, of_jobs: Callable[[models.Q], models.Q]
) -> _Rows:
    """The rows that this person may see: their own, those that others share, and all of the pools they operate.

    Args:
        of_jobs: from the jobs that others share to the rows that are shared with them.
    """
    if not user.is_authenticated:
        return rows.none()
    pools = operated_pools(user)
    if pools is None:
        return rows
    seen = models.Q(owner_id=user.pk) | of_jobs(shared_with(user))
    return rows.filter(seen | models.Q(pool__in=pools) if pools else seen)
