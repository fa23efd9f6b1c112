"""What lists say of a service: its replicas, and whether it answers."""

from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser, User

from orchestrator.exceptions import NotFound, OrchestratorError, Sentence
from orchestrator.jobs.submission import intake
from orchestrator.models import JobState, Lease, Service, ServiceReplica, ServiceState
from orchestrator.services.controller import is_serving, open_replicas


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica for lists."""

    replica: ServiceReplica
    devices: tuple[str, ...]
    is_old: bool  # of an earlier revision: it answers until a newer one does

    @property
    def state(self) -> str:
        """ready, starting while its program runs but does not answer yet, else the state of its job."""
        if is_serving(self.replica):
            return "ready"
        return "starting" if self.replica.job.state == JobState.RUNNING else self.replica.job.state


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One service for lists."""

    service: Service
    replicas: tuple[ReplicaRow, ...]

    @property
    def ready(self) -> int:
        return sum(each.state == "ready" for each in self.replicas)

    @property
    def sleeps(self) -> bool:
        """It is on, and the next request starts its first replica."""
        return self.service.state == ServiceState.ON and not self.replicas


def services_of(user: AbstractBaseUser) -> list[ServiceRow]:
    """The services that a person may see, by name."""
    rows = Service.objects.visible_to(user).select_related("owner").prefetch_related("keys")
    return [row_of(service) for service in rows]


def words_of(service: Service) -> str:
    """What a replica runs, in one line."""
    fields = service.job_fields if isinstance(service.job_fields, dict) else {}
    if fields.get("module"):
        words = ["python", "-m", fields["module"], *(fields.get("args") or [])]
    else:
        words = fields.get("command") or []
    return " ".join(map(str, words)) if isinstance(words, list) else str(words)


def datasets_of(service: Service) -> list[str]:
    """The data that its replicas read, as far as what is stored can be read."""
    fields = service.job_fields if isinstance(service.job_fields, dict) else {}
    named = fields.get("datasets")
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


def problem_of(service: Service) -> str:
    """Why no replica of it could be submitted by what is stored; empty: one could."""
    try:
        intake.parse_spec({**service.job_fields, "name": service.name, "source": {"bundle": service.bundle}})
    except OrchestratorError as error:
        return Sentence("No replica can be submitted: {why}", why=error.args[0])
    except (TypeError, ValueError, AttributeError):
        return "No replica can be submitted: what is stored of its job cannot be read."
    return ""


def row_of(service: Service) -> ServiceRow:
    replicas = open_replicas(service)
    held: dict[object, list[str]] = {}
    leases = Lease.objects.active().filter(attempt__job__in=[each.job_id for each in replicas])
    for lease in leases.select_related("device", "attempt").order_by("rank"):
        held.setdefault(lease.attempt.job_id, []).append(lease.device.label)
    rows = (
        ReplicaRow(each, tuple(held.get(each.job_id, ())), each.revision < service.revision)
        for each in replicas
    )
    return ServiceRow(service, tuple(rows))


def find(user: User, name: str) -> Service:
    """Find a service by its name.

    Raises:
        NotFound: this user may see no such service.
    """
    found = Service.objects.visible_to(user).select_related("owner").filter(name=name).first()
    if found is None:
        raise NotFound(Sentence("There is no service {name!r}, or you may not see it.", name=name[:64]))
    return found
