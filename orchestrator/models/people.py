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
    waits = models.BooleanField(
        default=False
    )  # came by an identity provider; a viewer until somebody approves
    by_group = models.BooleanField(default=False)  # the role is the identity provider's group's
    must_change = models.BooleanField(
        default=False
    )  # somebody else knows the password: choose one at sign-in
    service = models.BooleanField(default=False)  # a program's account: acts by tokens, signs in nowhere

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


class LastSeen(models.Model):
    """When a person last used the pages, to some minutes."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="last_seen"
    )
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.user} at {self.at:%Y-%m-%d %H:%M}"


class Invitation(models.Model):
    """A link that makes one account, once; its secret part is stored as a hash."""

    digest = models.CharField(max_length=64, unique=True)
    note = models.CharField(max_length=80, blank=True)  # whom it is for
    role = models.CharField(max_length=12, choices=Role)
    pools = models.JSONField(default=dict)  # rights by name of the pool
    limits = models.JSONField(default=dict)  # of a quota over all pools, by name
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="invitations"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)
    used_at = models.DateTimeField(null=True)
    used_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="invited_with"
    )

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"invitation {self.pk}{f' for {self.note}' if self.note else ''}"


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
