"""Pools and their devices."""

from typing import Any, ClassVar

from django.db import models

from orchestrator.devices.types import SLICES_FROM
from orchestrator.sentences import say_json

CPU_POOL = "cpu"  # of the CPU slots beside GPUs
LOCAL_NODE = "local"  # this server


class Visibility(models.TextChoices):
    """Who sees a job."""

    PRIVATE = "private", "its owner and operators"
    PROJECT = "project", "also the members of its project"
    LAB = "lab", "everybody with an account"


class Network(models.TextChoices):
    HOST = "host", "the server's network"
    NONE = "none", "no network"


class Sharing(models.TextChoices):
    OFF = "off", "jobs that name no memory get whole devices"
    LEARNED = "learned", "jobs that name no memory claim what earlier runs of them used"


class Pool(models.Model):
    """A set of devices on which jobs are placed together."""

    name = models.SlugField(primary_key=True, max_length=64)
    description = models.CharField(max_length=200, blank=True)
    network = models.CharField(max_length=8, choices=Network, default=Network.HOST)
    pythons = models.JSONField(
        default=dict, blank=True, help_text="Interpreters jobs may name: {name: absolute path}"
    )
    sharing = models.CharField(max_length=8, choices=Sharing, default=Sharing.OFF)
    idle_after_s = models.PositiveIntegerField(
        default=1800,
        null=True,
        blank=True,
        help_text="A job that leaves its devices unused for so long is warned",
    )
    idle_stop_after_s = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="... and for so long is stopped, a session put to sleep; empty: never",
    )
    session_end_after_s = models.PositiveIntegerField(
        default=7 * 24 * 3600,
        null=True,
        blank=True,
        help_text="A session that is asleep for so long is ended; empty: never",
    )
    session_most_devices = models.PositiveIntegerField(
        null=True, blank=True, help_text="A session may ask for so many devices; empty: any number"
    )
    session_most_s = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="A session ends after so long at the latest; empty: when it is stopped",
    )
    session_memory_gib = models.FloatField(
        null=True,
        blank=True,
        help_text="A session that names no memory gets so much of each device; empty: whole devices, or what was learned",
    )
    sessions_a_person = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Sessions that a person may have at once, asleep ones not counted; empty: any number",
    )
    slowdown_limit = models.FloatField(
        default=1.3,
        null=True,
        blank=True,
        help_text="Jobs that share a device may make each other's steps take this many times longer; empty: any",
    )
    open = models.BooleanField(
        default=True, help_text="Whoever may submit at all may submit here; else only those with a right"
    )
    caches = models.BooleanField(
        default=True, help_text="Jobs keep what they download and compile for the next job of the same person"
    )
    visibility = models.CharField(
        max_length=8,
        choices=Visibility,
        blank=True,
        help_text="Who sees jobs that do not say it themselves; empty: as the server's setting says",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class AdminState(models.TextChoices):
    ENABLED = "enabled"
    DRAINING = "draining"
    DISABLED = "disabled"


class Health(models.TextChoices):
    OK = "ok"
    FENCED = "fenced"
    FAULTY = "faulty"
    MISSING = "missing"
    SILENT = "silent"  # its server does not answer


class Device(models.Model):
    """A GPU, a MIG slice, a CPU slot or a simulated GPU; its tenants are its leases."""

    id = models.CharField(primary_key=True, max_length=96)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="devices")
    index = models.PositiveIntegerField()
    kind = models.CharField(max_length=8)  # gpu, cpu, sim
    name = models.CharField(max_length=120)
    node = models.CharField(max_length=64, default=LOCAL_NODE)
    memory_bytes = models.PositiveBigIntegerField()
    numa_node = models.IntegerField(null=True, blank=True)
    nvlink = models.JSONField(default=list, blank=True)
    mig_parent = models.CharField(max_length=96, blank=True)
    mig_profile = models.CharField(max_length=32, blank=True)
    nodes = models.JSONField(default=list, blank=True, help_text="Device files a job needs")
    driver = models.CharField(max_length=64, blank=True)
    admin_state = models.CharField(max_length=8, choices=AdminState, default=AdminState.ENABLED)
    drain_reason = models.CharField(max_length=200, blank=True)  # why it is draining or disabled, for people
    drain_until = models.DateTimeField(null=True, blank=True)  # enabled again then; null: by hand
    health = models.CharField(max_length=8, choices=Health, default=Health.OK)
    # A HealthFact, as ``Fact.as_json`` writes it; empty while healthy.
    health_why = models.JSONField(default=dict)
    added_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["index", "id"]

    def __str__(self) -> str:
        return self.label

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.health == Health.OK:
            self.health_why = {}
        super().save(*args, **kwargs)

    @property
    def health_reason(self) -> str:
        """Why it is not healthy, in a sentence for people; nothing decides by it."""
        return say_json(self.health_why)

    @property
    def label(self) -> str:
        """The name that people see: GPU 3, CPU slot 0, simulated GPU 2, GPU 3 slice 1; of another server, gpu2: GPU 3."""
        server = "" if self.node == LOCAL_NODE else f"{self.node}: "
        if self.mig_parent:
            gpu, number = divmod(self.index - SLICES_FROM, SLICES_FROM)
            return f"{server}GPU {gpu} slice {number}"
        kind = {"gpu": "GPU", "cpu": "CPU slot", "sim": "simulated GPU"}.get(self.kind, self.kind)
        return f"{server}{kind} {self.index}"

    @property
    def place(self) -> tuple[bool, str, int, str]:
        """Its place on pages: CPU slots beside GPUs come last, other servers after this one."""
        return self.kind == "cpu", "" if self.node == LOCAL_NODE else self.node, self.index, self.id

    @property
    def usable(self) -> bool:
        """Whether jobs may be placed on the device."""
        return self.admin_state == AdminState.ENABLED and self.health == Health.OK
