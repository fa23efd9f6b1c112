"""Notes that people write about jobs and projects, and links that show something to those without an account."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone

from orchestrator.models.jobs import Job
from orchestrator.models.projects import Project
from orchestrator.models.sweeps import Sweep


class Note(models.Model):
    """A text in Markdown about a job, a step of it, or a project."""

    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notes")
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="notes")
    project = models.ForeignKey(Project, null=True, on_delete=models.CASCADE, related_name="notes")
    step = models.BigIntegerField(null=True)  # of the job: the charts mark it
    text = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(job__isnull=False) ^ models.Q(project__isnull=False),
                name="note_is_about_one_thing",
            )
        ]

    def __str__(self) -> str:
        return f"note {self.pk}"


class LinkKind(models.TextChoices):
    JOB = "job"
    REPORT = "report"
    COMPARE = "compare"
    SWEEP = "sweep"
    PROJECT = "project"


class LinkQuerySet(models.QuerySet["ShareLink"]):
    def open(self) -> "LinkQuerySet":
        """Links that still show something, as far as their own row tells."""
        return self.filter(revoked_at=None, expires_at__gt=timezone.now())


class ShareLink(models.Model):
    """A link that shows one thing, read-only, until it ends; its secret part is stored as a hash."""

    digest = models.CharField(max_length=64, unique=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="share_links")
    kind = models.CharField(max_length=8, choices=LinkKind)
    jobs = models.ManyToManyField(Job, related_name="share_links")  # of a job, a report or a comparison
    sweep = models.ForeignKey(Sweep, null=True, on_delete=models.CASCADE, related_name="share_links")
    project = models.ForeignKey(Project, null=True, on_delete=models.CASCADE, related_name="share_links")
    shows = models.JSONField(default=list)  # names of sections
    note = models.CharField(max_length=80, blank=True)  # whom it is for
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)

    objects = LinkQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"link {self.pk} of {self.owner}"
