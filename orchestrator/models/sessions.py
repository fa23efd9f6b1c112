"""Passes to sessions: who may reach a session's program through which browser."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from orchestrator.models.jobs import Job


class SessionPass(models.Model):
    """A ticket for one browser, and the cookie that it became; only digests are stored.

    It ends with the sign-in that asked for it.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="passes")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="session_passes"
    )
    sign_in = models.CharField(max_length=40)  # key of the session in which the person is signed in to Berth
    password_mark = models.CharField(max_length=64)  # changes with the person's password
    browser_digest = models.CharField(max_length=64)  # of what the browser keeps until the ticket comes
    ticket_digest = models.CharField(max_length=64, unique=True)
    cookie_digest = models.CharField(max_length=64, blank=True, db_index=True)  # empty: not used yet
    ticket_ends_at = models.DateTimeField()
    ends_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering: ClassVar = ["pk"]

    def __str__(self) -> str:
        return f"{self.user} in {self.job_id}"
