"""The append-only history of jobs."""

from typing import ClassVar

from django.db import models

from orchestrator.models.jobs import Job


class JobEvent(models.Model):
    """One thing that happened to a job; numbered from 1 without gap.

    A transition has ``from_state`` and ``to_state``; a remark (a fallback to an older checkpoint, a
    warning) has the same state in both.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    number = models.PositiveIntegerField()
    at = models.DateTimeField()
    from_state = models.CharField(max_length=16, blank=True)
    to_state = models.CharField(max_length=16)
    actor = models.CharField(max_length=160)  # a user's name, or scheduler, supervisor, reaper, timer
    reason = models.CharField(max_length=1000, blank=True)

    class Meta:
        ordering: ClassVar = ["job", "number"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "number"], name="event_number_once")]

    def __str__(self) -> str:
        return f"{self.job_id} {self.number}: {self.from_state} -> {self.to_state}"
