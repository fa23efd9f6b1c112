"""Addresses for notices about jobs, and the notices sent there."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from orchestrator.models.jobs import Job
from orchestrator.sentences import say_json


class Occasion(models.TextChoices):
    """The occasions for a notice; the labels appear on pages."""

    STARTED = "started", "a job starts"
    FINISHED = "finished", "a job finishes"
    FAILED = "failed", "a job fails, is timed out, or is cancelled by somebody else"
    RETRIED = "retried", "a job is tried again or makes room for another"
    WARNING = "warning", "a job looks wrong: idle, stuck, not a number"


class NoticeTarget(models.Model):
    """A person's address for notices, including its password or key: stored encrypted, shown masked."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notice_targets"
    )
    sealed = models.BinaryField()  # the address, by orchestrator.people.secrets
    shown = models.CharField(max_length=200)  # without its secret parts
    occasions = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    last_sent_at = models.DateTimeField(null=True)
    # Why the newest notice did not arrive: a NoticeFact, as ``Fact.as_json`` writes it; empty if it arrived.
    last_why = models.JSONField(default=dict)

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"{self.shown} of {self.user}"

    @property
    def last_error(self) -> str:
        """Why the newest notice did not arrive, in a sentence for people; nothing decides by it."""
        return say_json(self.last_why)


class Notice(models.Model):
    """One notice to one address."""

    target = models.ForeignKey(NoticeTarget, on_delete=models.CASCADE, related_name="notices")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, null=True)  # null: a test
    event_number = models.PositiveIntegerField(default=0)
    sweep = models.ForeignKey(
        "Sweep", on_delete=models.CASCADE, null=True
    )  # in place of a job: about all its trials
    title = models.CharField(max_length=300)
    body = models.CharField(max_length=2000)
    created_at = models.DateTimeField()
    next_try_at = models.DateTimeField(null=True)  # null: sent, or given up
    tries = models.PositiveSmallIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            # After a crash events are read again; each leads to one notice.
            models.UniqueConstraint(
                fields=["target", "job", "event_number"],
                condition=models.Q(job__isnull=False),
                name="notice_of_an_event_once",
            ),
            models.UniqueConstraint(
                fields=["target", "sweep", "event_number"],
                condition=models.Q(sweep__isnull=False),
                name="notice_of_a_sweep_once",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["next_try_at"])]

    def __str__(self) -> str:
        return self.title
