"""Projects: people who see each other's jobs."""

from typing import ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.models.people import Person
from orchestrator.models.pools import Visibility


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
