"""API tokens, the secrets of jobs, passes to sessions, and the answers kept for repeated requests."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from orchestrator.models.jobs import Job


class Scope(models.TextChoices):
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Token(models.Model):
    """A person's API token: shown once, stored as a hash."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12)  # distinguishes tokens; not secret
    digest = models.CharField(max_length=64, unique=True)
    scope = models.CharField(max_length=8, choices=Scope, default=Scope.WRITE)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.prefix}… of {self.user}"


class AgentRules(models.Model):
    """What makes a token an agent's: how much its jobs may use, and whether each is planned first."""

    token = models.OneToOneField(Token, on_delete=models.CASCADE, primary_key=True, related_name="agent")
    device_hours = models.FloatField(null=True)  # of all its jobs; None: no limit
    width = models.PositiveIntegerField()  # devices that its jobs hold at once
    plan_first = models.BooleanField()
    planned = models.JSONField(default=dict)  # when it last planned what, by a hash

    def __str__(self) -> str:
        return f"agent's {self.token}"


class IdempotencyKey(models.Model):
    """The answer to a request, so that repeating the request gets the same answer; stored for 24 h."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    endpoint = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)  # of the body, files included
    status = models.PositiveSmallIntegerField()
    answer = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "endpoint", "key"], name="idempotency_key_once")
        ]

    def __str__(self) -> str:
        return self.key


class JobSecret(models.Model):
    """A value that a person's jobs get as an environment variable; stored encrypted, never shown again."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="job_secrets")
    name = models.CharField(max_length=128)
    sealed = models.BinaryField()  # by orchestrator.people.secrets; the key is in a separate file
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["owner", "name"], name="job_secret_name_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.owner}"


class SessionPass(models.Model):
    """A ticket for one browser to a session's program, and the cookie that it became; only digests are stored.

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
