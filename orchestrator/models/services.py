"""Services: programs that answer requests; each replica of one is a job."""

from typing import ClassVar, Self

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.models.jobs import Job
from orchestrator.models.pools import Pool
from orchestrator.models.projects import visible_rows


class ServiceState(models.TextChoices):
    ON = "on"  # replicas come and go as requests do
    STOPPED = "stopped"  # by a person
    FAILED = "failed"  # its replicas died one after the other


class ServiceQuerySet(models.QuerySet["Service"]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """One's own services, those with a replica that others share, and all of the pools that one operates."""

        def of_jobs(shared: models.Q) -> models.Q:
            replicas = ServiceReplica.objects.filter(job__in=Job.objects.filter(shared))
            return models.Q(pk__in=replicas.values("service"))

        return visible_rows(self, user, of_jobs)


class Service(models.Model):
    """What answers at one address: the job of each replica, and the rules by which replicas come and go."""

    name = models.CharField(max_length=64, unique=True)  # part of its address
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="services")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="services")
    job_fields = models.JSONField()  # of every replica, as the spec of a job without its code
    bundle = models.CharField(max_length=64)
    revision = models.PositiveIntegerField(default=1)  # of the two above; replicas of older ones are replaced
    min_replicas = models.PositiveIntegerField(default=0)
    max_replicas = models.PositiveIntegerField(default=1)
    idle_s = models.FloatField()  # without a request, until only the least replicas are left
    deadline_s = models.FloatField()  # of a request that names none
    parallel = models.PositiveIntegerField(default=1)  # requests at once in one replica
    most_waiting = models.PositiveIntegerField()
    health_path = models.CharField(max_length=500)  # empty: a replica is ready once it takes connections
    state = models.CharField(max_length=16, choices=ServiceState, default=ServiceState.ON)
    why = models.JSONField(default=dict)  # it is in this state: a fact, as ``Fact.as_json`` writes it
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()  # failures before it do not count
    asked_at = models.DateTimeField(null=True)  # the newest request, to within a second
    wanted = models.PositiveIntegerField(
        default=0
    )  # replicas that the requests of the last seconds would use
    traffic = models.JSONField(default=dict)  # of the last minute, as ``Traffic.as_json`` writes it

    objects = ServiceQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class ServiceReplica(models.Model):
    """One replica and its job; both are written in one transaction."""

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="replicas")
    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="replica")
    revision = models.PositiveIntegerField()
    ready_attempt = models.PositiveIntegerField(
        default=0
    )  # number of the attempt that answered its health path
    ready_at = models.DateTimeField(null=True)
    retired_at = models.DateTimeField(null=True)  # it gets no further requests, and is stopped

    class Meta:
        ordering: ClassVar = ["pk"]

    def __str__(self) -> str:
        return f"{self.service} r{self.revision}"


class ServiceKey(models.Model):
    """A secret that opens one service to programs; only its digest is stored."""

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="keys")
    name = models.CharField(max_length=80)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["pk"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["service", "name"], name="service_key_name_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.service}"
