"""The audit: who did what, written once and never changed."""

from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

from django.db import models

from orchestrator.exceptions import Conflict


class AppendOnly(Conflict):
    """An audit entry cannot be changed or deleted."""

    code = "append_only"

    def __init__(self) -> None:
        super().__init__("The audit is append-only: its entries can be neither changed nor deleted.")


class AuditQuerySet(models.QuerySet["AuditEntry"]):
    def update(self, **_columns: Any) -> NoReturn:
        raise AppendOnly

    def delete(self) -> NoReturn:
        raise AppendOnly

    def bulk_create(self, objs: Iterable["AuditEntry"], *args: Any, **options: Any) -> list["AuditEntry"]:
        if options.get("update_conflicts"):
            raise AppendOnly
        return super().bulk_create(objs, *args, **options)

    def bulk_update(self, *_arguments: Any, **_options: Any) -> NoReturn:
        raise AppendOnly


class AuditEntry(models.Model):
    """One act of a person; names are stored as text, so that entries outlive the objects they name."""

    at = models.DateTimeField()
    actor = models.CharField(max_length=150)  # as typed if a sign-in failed
    action = models.CharField(max_length=32)  # such as quota.changed
    subject = models.CharField(max_length=200, blank=True)  # such as user ada, pool default, job 8c2f01d4
    text = models.CharField(max_length=1000)
    address = models.CharField(max_length=64, blank=True)  # where the request came from

    objects = AuditQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["actor"]), models.Index(fields=["action"])]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.actor} {self.action}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.pk is not None:
            raise AppendOnly
        super().save(*args, **kwargs)

    def delete(self, *_arguments: Any, **_options: Any) -> NoReturn:
        raise AppendOnly
