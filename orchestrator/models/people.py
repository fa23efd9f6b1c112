"""What people may do: their role, and rights in single pools."""

from typing import ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.models.pools import Pool


class Role(models.TextChoices):
    VIEWER = "viewer", "looks only"
    SUBMITTER = "submitter", "submits jobs"
    OPERATOR = "operator", "operates every pool"
    ADMIN = "admin", "may do everything"


class Person(models.Model):
    """The role of a user; a user without a row is a submitter, and staff are admins in any case."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="person")
    role = models.CharField(
        max_length=12,
        choices=[choice for choice in Role.choices if choice[0] != Role.ADMIN],
        default=Role.SUBMITTER,
    )

    class Meta:
        verbose_name_plural = "people"

    def __str__(self) -> str:
        return f"{self.user}: {self.role}"


class Right(models.TextChoices):
    SUBMIT = "submit", "may submit to it, also where it is closed"
    OPERATE = "operate", "operates it: its jobs and its devices"


class PoolRight(models.Model):
    """What one person may do in one pool beyond their role."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="rights")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="pool_rights")
    right = models.CharField(max_length=8, choices=Right)

    class Meta:
        ordering: ClassVar = ["pool", "user"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pool", "user"], name="one_right_a_person_and_pool")
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.pool_id}: {self.right}"


def operated_pools(user: AbstractBaseUser | AnonymousUser) -> list[str] | None:
    """The pools whose jobs this person can see and control; None: all."""
    if (
        getattr(user, "is_staff", False)
        or Person.objects.filter(user_id=user.pk or 0, role=Role.OPERATOR).exists()
    ):
        return None
    return list(
        PoolRight.objects.filter(user_id=user.pk or 0, right=Right.OPERATE).values_list("pool_id", flat=True)
    )


class SignInFailure(models.Model):
    """A wrong password, stored for a while to slow down guessing."""

    key = models.CharField(max_length=64, db_index=True)  # hash of account and address, or of an address
    at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["at"])]

    def __str__(self) -> str:
        return f"{self.key[:8]} {self.at}"
