"""Datasets: a path under a registered root, or files that a person pushed."""

from typing import ClassVar, Self

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models


class DatasetRoot(models.Model):
    """A folder of the server under which datasets may be registered; admins add them."""

    name = models.SlugField(primary_key=True, max_length=64)
    path = models.CharField(max_length=1024)

    def __str__(self) -> str:
        return self.name


class DatasetQuerySet(models.QuerySet["Dataset"]):
    def registered(self) -> Self:
        """The datasets of the server's folders, which are for everybody."""
        return self.filter(root__isnull=False)

    def pushed_by(self, user_id: int) -> Self:
        return self.filter(root__isnull=True, owner_id=user_id)

    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """What is registered, and what this person pushed; admins see everything."""
        if getattr(user, "is_staff", False):
            return self
        return self.filter(models.Q(root__isnull=False) | models.Q(owner_id=user.pk))


class Dataset(models.Model):
    """Files that jobs read and never write: registered for everybody, or pushed by a person for themselves."""

    name = models.CharField(max_length=64)
    version = models.CharField(max_length=32, default="1")
    # Null: it was pushed, and its files are Berth's own.
    root = models.ForeignKey(DatasetRoot, null=True, on_delete=models.PROTECT, related_name="datasets")
    path = models.CharField(
        max_length=1100
    )  # relative to the root, or to the folder of everything that was pushed
    description = models.CharField(max_length=300, blank=True)
    sha256 = models.CharField(max_length=64, blank=True)
    size_bytes = models.PositiveBigIntegerField(null=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="datasets")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = DatasetQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["name", "-created_at"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["name", "version"],
                condition=models.Q(root__isnull=False),
                name="dataset_version_once",
            ),
            models.UniqueConstraint(
                fields=["owner", "name", "version"],
                condition=models.Q(root__isnull=True),
                name="pushed_version_once",
            ),
        ]

    def __str__(self) -> str:
        return self.reference

    @property
    def reference(self) -> str:
        """What a job names it by; a pushed one has its owner's name, for it may be called as another person's."""
        whose = f"{self.owner.username}/" if self.is_pushed else ""
        return f"{whose}{self.name}@{self.version}"

    @property
    def is_pushed(self) -> bool:
        return self.root_id is None
