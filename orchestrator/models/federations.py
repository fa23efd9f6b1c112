"""Federations: rounds of one training at several sites, each of which is a job, beside the job of their server."""

from typing import ClassVar, Self

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.models.jobs import SHORT_ID_LENGTH, Job, new_job_id
from orchestrator.models.model_versions import ModelVersion
from orchestrator.models.pools import Pool
from orchestrator.models.projects import visible_rows

# Of its jobs: its id as they ask for it, and the folder between them once they run.
FEDERATION_VARIABLE = "FEDERATION_EXCHANGE"


class FederationState(models.TextChoices):
    RUNNING = "running"
    ENDED = "ended"  # all rounds are done
    STOPPED = "stopped"  # by a person
    FAILED = "failed"  # too few sites were left, or the server's job failed


class FederationQuerySet(models.QuerySet["Federation"]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """One's own, those with a job that others share, and all of the pools that one operates."""

        def of_jobs(shared: models.Q) -> models.Q:
            members = FederationMember.objects.filter(job__in=Job.objects.filter(shared))
            return models.Q(pk__in=members.values("federation"))

        return visible_rows(self, user, of_jobs)


class Federation(models.Model):
    """One federated training."""

    id = models.UUIDField(primary_key=True, default=new_job_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="federations")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="federations")  # of its sites
    name = models.CharField(max_length=180)
    options = models.JSONField()  # as they were asked for, without the job
    rounds = models.PositiveIntegerField()
    sites = models.PositiveIntegerField()
    result_name = models.CharField(max_length=64, blank=True)  # empty: it makes no model
    result = models.ForeignKey(ModelVersion, null=True, on_delete=models.SET_NULL, related_name="federations")
    state = models.CharField(max_length=16, choices=FederationState, default=FederationState.RUNNING)
    why = models.JSONField(default=dict)  # it is in this state: a fact, as ``Fact.as_json`` writes it
    report = models.JSONField(default=dict)  # of its server, once it has ended
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    cleared = models.BooleanField(default=False)  # no job of it is open, and the folder between them is gone

    objects = FederationQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["cleared"]), models.Index(fields=["owner", "id"])]

    def __str__(self) -> str:
        return f"{self.name} #{self.short_id}"

    @property
    def has_ended(self) -> bool:
        return self.state != FederationState.RUNNING

    @property
    def remote_numbers(self) -> range:
        """The numbers of sites at other Berths; the jobs here come first."""
        return range(self.sites - int(self.options.get("remote_sites", 0)), self.sites)

    @property
    def short_id(self) -> str:
        """The last eight characters, as people see it."""
        return str(self.id)[-SHORT_ID_LENGTH:]


class FederationMember(models.Model):
    """A job of a federation: a site by its number, or the server, which has none."""

    federation = models.ForeignKey(Federation, on_delete=models.CASCADE, related_name="members")
    number = models.PositiveIntegerField(null=True)  # null: the server
    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="federation_member")

    class Meta:
        ordering: ClassVar = ["federation", "number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["federation", "number"], name="federation_site_once"),
        ]

    def __str__(self) -> str:
        return f"{'server' if self.number is None else f'site {self.number}'} of {self.federation_id}"


class FederationInvitation(models.Model):
    """A site at another Berth: its secret, and how far its messages have come."""

    federation = models.ForeignKey(Federation, on_delete=models.CASCADE, related_name="invitations")
    number = models.PositiveIntegerField()  # of the site
    name = models.CharField(max_length=64)  # of the site, as people call it
    digest = models.CharField(max_length=64, unique=True)  # of the secret, which is stored nowhere
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="federation_invitations"
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()  # for joining; a site that has joined stays
    revoked_at = models.DateTimeField(null=True)
    joined_at = models.DateTimeField(null=True)  # its first request
    seen_at = models.DateTimeField(null=True)  # its newest request, to some seconds
    largest_bytes = models.BigIntegerField(default=0)  # of the messages that it has fetched
    received = models.PositiveBigIntegerField(default=0)  # messages of it that were passed on
    applied = models.JSONField(default=list)  # ids of the newest of them

    class Meta:
        ordering: ClassVar = ["federation", "number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["federation", "number"], name="federation_seat_once"),
            models.UniqueConstraint(fields=["federation", "name"], name="federation_invited_once"),
        ]

    def __str__(self) -> str:
        return f"site {self.name} of {self.federation_id}"
