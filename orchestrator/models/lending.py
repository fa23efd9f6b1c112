"""Systems that lend devices to a pool for a time, and what they lent."""

from typing import ClassVar, Self

from django.db import models

from orchestrator.models.pools import Pool


class LendingSystem(models.TextChoices):
    SLURM = "slurm", "Slurm"
    KUBERNETES = "kubernetes", "Kubernetes"


class Lender(models.Model):
    """Where a pool's devices come from, and how much of it Berth may ask for."""

    pool = models.OneToOneField(Pool, primary_key=True, on_delete=models.CASCADE, related_name="lender")
    system = models.CharField(max_length=12, choices=LendingSystem)
    partition = models.CharField(max_length=100, blank=True)  # Kubernetes: the namespace
    account = models.CharField(max_length=100, blank=True)
    image = models.CharField(max_length=300, blank=True)  # Kubernetes only
    via = models.CharField(
        max_length=200, blank=True
    )  # the host on which Slurm's commands run, by ssh; empty: here
    python = models.CharField(max_length=300, blank=True)  # with Berth, on the lent servers; empty: as here
    gpus = models.PositiveIntegerField(default=0)  # of one allocation
    cpus = models.PositiveIntegerField(default=1)
    most_pilots = models.PositiveIntegerField(default=1)
    longest_s = models.PositiveIntegerField(default=4 * 3600)  # one allocation
    leave_before_s = models.PositiveIntegerField(
        default=600
    )  # jobs checkpoint and leave this long before its end
    idle_s = models.PositiveIntegerField(default=300)  # an unused pilot is given back after this time
    problem = models.CharField(max_length=500, blank=True)  # why the last request was refused
    problem_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.get_system_display()} for {self.pool_id}"

    @property
    def devices(self) -> int:
        """The devices of one allocation: its GPUs, or its CPU slots where it has none."""
        return self.gpus or self.cpus


class PilotState(models.TextChoices):
    REQUESTED = "requested"  # nobody knows yet whether the system has it
    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


class PilotQuerySet(models.QuerySet["Pilot"]):
    def open(self) -> Self:
        """Those that are not over."""
        return self.exclude(state=PilotState.ENDED)


class Pilot(models.Model):
    """One allocation that was asked for; while it is held, a server with its name is in the pool."""

    name = models.CharField(max_length=63)  # of the server it becomes
    tag = models.CharField(max_length=32, unique=True)  # under which the system finds it again
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="pilots")
    system = models.CharField(max_length=12, choices=LendingSystem)
    devices = models.PositiveIntegerField()
    longest_s = models.PositiveIntegerField()  # as it was asked for
    grant = models.CharField(max_length=100, blank=True)  # the number or name that the system gave it
    state = models.CharField(max_length=9, choices=PilotState, default=PilotState.REQUESTED)
    reason = models.CharField(max_length=300, blank=True)  # why it waits or ended, in the words of the system
    where = models.CharField(max_length=200, blank=True)
    requested_at = models.DateTimeField()
    expected_at = models.DateTimeField(null=True)  # the system's estimate of its start
    held_at = models.DateTimeField(null=True)
    until = models.DateTimeField(null=True)
    used_at = models.DateTimeField(null=True)  # a job held one of its devices
    given_back_at = models.DateTimeField(null=True)  # the system was asked to end it
    ended_at = models.DateTimeField(null=True)

    objects = PilotQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["name"], condition=~models.Q(state="ended"), name="one_open_pilot_a_name"
            ),
        ]

    def __str__(self) -> str:
        return self.name
