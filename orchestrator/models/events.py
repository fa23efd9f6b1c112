"""The append-only history of jobs."""

from typing import ClassVar, Self

from django.db import models

from orchestrator.facts.record import Fact
from orchestrator.models.jobs import Job
from orchestrator.sentences import say


class JobEventQuerySet(models.QuerySet["JobEvent"]):
    def of(self, kind: str, **facts: str | int) -> Self:
        """Those that tell that this happened, with these facts among theirs."""
        return self.filter(kind=kind, **{f"data__{name}": value for name, value in facts.items()})


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
    kind = models.CharField(max_length=48, blank=True)  # what happened, a code of orchestrator.facts
    data = models.JSONField(default=dict)  # its facts, by name

    objects = JobEventQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["job", "number"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "number"], name="event_number_once")]
        # The bell asks on every page what happened lately: no walk over all of a person's jobs.
        indexes: ClassVar = [models.Index(fields=["at"], name="event_by_time")]

    def __str__(self) -> str:
        return f"{self.job_id} {self.number}: {self.from_state} -> {self.to_state}"

    @property
    def fact(self) -> Fact:
        return Fact(self.kind, self.data)

    @property
    def reason(self) -> str:
        """What happened, in a sentence for people; nothing decides by it."""
        return say(self.fact)
