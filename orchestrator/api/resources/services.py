"""Services: begin, list, read, change, stop, remove; their keys. What services answer comes from /serve/NAME/."""

from datetime import datetime
from uuid import UUID

from ninja import Router
from ninja.responses import Status
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, whole
from orchestrator.api.http.reading import Body, read_object
from orchestrator.api.http.writing import FactOut
from orchestrator.api.resources.submission import read_submit, request_body
from orchestrator.models import Service
from orchestrator.people import audit
from orchestrator.sentences import say_json
from orchestrator.services import asking, creation, keys, listing
from orchestrator.services.listing import ServiceRow

router = Router()


class ReplicaOut(BaseModel):
    """A replica; the job of this id has the rest."""

    job: UUID = Field(description="id of its job")
    state: str = Field(description="ready, starting, or the state of its job")
    revision: int = Field(description="of the service's job and code, that it runs")
    devices: list[str] = Field(description="what it holds now")


class TrafficOut(BaseModel):
    """The last minute in which it was asked; times count answers that succeeded."""

    requests_per_s: float = Field(0, description="all that came, over the whole minute")
    p50_ms: float | None = Field(None, description="half of the answers took at most this long; null: none")
    p99_ms: float | None = Field(None, description="99 % of the answers took at most this long; null: none")
    errors: int = Field(0, description="answers with 5xx, but for 504")
    refused: int = Field(0, description="429: they would have come too late")
    late: int = Field(0, description="504: the replica took longer than the deadline")


class ServiceOut(BaseModel):
    """A service, its replicas and its traffic."""

    name: str = Field(description="part of its address")
    owner: str = Field(description="whose jobs its replicas are")
    pool: str = Field(description="where its replicas run")
    address: str = Field(description="requests go here, with a key: Authorization: Bearer KEY")
    state: str = Field(description="on, stopped or failed")
    reason: str = Field(description="why it is in this state")
    why: FactOut | None = Field(description="what reason is made of")
    runs: str = Field(description="the command of a replica")
    revision: int = Field(description="counts the changes of job and code")
    replicas: list[ReplicaOut] = Field(description="those that have not ended, oldest first")
    ready: int = Field(description="replicas that answer now")
    min_replicas: int = Field(description="replicas that run without requests, too")
    max_replicas: int = Field(description="replicas at most")
    idle_s: float = Field(description="without a request, until only min_replicas are left")
    deadline_s: float = Field(description="within which a request is answered that names no deadline")
    parallel: int = Field(description="requests at once in one replica")
    most_waiting: int = Field(description="requests that may wait for a replica")
    health_path: str = Field(
        description="answers 2xx once a replica is ready; empty: once it takes connections"
    )
    traffic: TrafficOut = Field(description="of the last minute in which it was asked")
    asked_at: datetime | None = Field(description="when the newest request came")
    keys: list[str] = Field(description="the names of its keys")
    created_at: datetime = Field(description="when it was begun")


class KeyIn(Body):
    """A new key."""

    name: StrictStr = Field(max_length=80, description="who uses it")


class KeyOut(BaseModel):
    """A new key, shown this once."""

    name: str = Field(description="as it was asked for")
    key: str = Field(description="the secret, to send as Authorization: Bearer KEY")


@router.get("", response=Page[ServiceOut])
def list_services(request: ApiRequest) -> Page[ServiceOut]:
    """The services that the caller may see, by name."""
    rows = listing.services_of(request.user)
    return whole(Page[ServiceOut], [show_service(row, request) for row in rows])


@router.post(
    "", response={201: ServiceOut}, openapi_extra={"requestBody": request_body("service", "ServiceSpec")}
)
def begin_service(request: ApiRequest) -> ServiceOut:
    """Begin a service; its first replica starts with the first request, or now with min_replicas."""
    submit = read_submit(request, "service")
    spec = asking.parse(submit.job)
    made = creation.create(
        request.user, spec, script=submit.script, bundle=submit.bundle, uploaded=_uploaded(request)
    )
    return show_service(listing.row_of(made), request)


@router.get("/{name}", response=ServiceOut)
def get_service(request: ApiRequest, name: str) -> ServiceOut:
    """One service by its name."""
    return show_service(listing.row_of(listing.find(request.user, name)), request)


@router.patch(
    "/{name}",
    response=ServiceOut,
    openapi_extra={
        "requestBody": {
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ServiceChanges"}}}
        }
    },
)
def change_service(request: ApiRequest, name: str) -> ServiceOut:
    """Change rules or job; replicas of a new job take over once they are ready, then the old ones stop."""
    service = _steered(request, name)
    changes = asking.parse_changes(read_object(request.body))
    creation.update(request.user, service, changes, uploaded=_uploaded(request))
    _note(request, service, "service.change", f"Changed {', '.join(sorted(changes.model_fields_set))}.")
    return show_service(listing.row_of(service), request)


@router.post(
    "/{name}/code",
    response=ServiceOut,
    openapi_extra={"requestBody": request_body("service", "ServiceChanges")},
)
def change_service_code(request: ApiRequest, name: str) -> ServiceOut:
    """Give a service new code, and what else is to change with it; replicas are replaced as above."""
    service = _steered(request, name)
    submit = read_submit(request, "service")
    changes = asking.parse_changes(submit.job) if submit.job else asking.ServiceChanges()
    creation.update(request.user, service, changes, script=submit.script, bundle=submit.bundle)
    _note(request, service, "service.change", "Changed its code.")
    return show_service(listing.row_of(service), request)


@router.post("/{name}/stop", response=ServiceOut)
def stop_service(request: ApiRequest, name: str) -> ServiceOut:
    """Stop its replicas and refuse requests until it is started again; repeating this is harmless."""
    service = _steered(request, name)
    creation.stop(service, by=request.user.get_username())
    _note(request, service, "service.stop", "Stopped it.")
    return show_service(listing.row_of(service), request)


@router.post("/{name}/start", response=ServiceOut)
def start_service(request: ApiRequest, name: str) -> ServiceOut:
    """Let a stopped or failed service answer again; repeating this is harmless."""
    service = _steered(request, name)
    creation.start(service)
    _note(request, service, "service.start", "Started it.")
    return show_service(listing.row_of(service), request)


@router.delete("/{name}", response={204: None})
def remove_service(request: ApiRequest, name: str) -> Status[None]:
    """Remove a service with its keys; the jobs of its replicas stay, stopped."""
    service = _steered(request, name)
    creation.remove(service)
    _note(request, service, "service.remove", "Removed it.")
    return Status(204, None)


@router.post("/{name}/keys", response={201: KeyOut})
def make_service_key(request: ApiRequest, name: str, body: KeyIn) -> KeyOut:
    """Make a key that opens this service and nothing else; it is shown this once."""
    service = _steered(request, name)
    made = KeyOut(name=body.name.strip(), key=keys.issue(service, body.name))
    _note(request, service, "service.key", f"Made the key {made.name}.")
    return made


@router.delete("/{name}/keys/{key}", response={204: None})
def remove_service_key(request: ApiRequest, name: str, key: str) -> Status[None]:
    """Remove a key by its name; requests with it are refused at once."""
    service = _steered(request, name)
    keys.remove(service, key)
    _note(request, service, "service.key", f"Removed the key {key}.")
    return Status(204, None)


def _uploaded(request: ApiRequest) -> str | None:
    """The bundle that a form of ours proves the caller to have uploaded; nothing that is sent can name it."""
    return getattr(request, "uploaded", None)


def _steered(request: ApiRequest, name: str) -> Service:
    service = listing.find(request.user, name)
    creation.check_steer(request.user, service)
    return service


def _note(request: ApiRequest, service: Service, action: str, text: str) -> None:
    """Audit an act on another person's service."""
    if service.owner_id != request.user.pk:
        subject = f"service {service} of {service.owner}"
        audit.record(request.user, action, subject, text, address=audit.address_of(request))


def show_service(row: ServiceRow, request: ApiRequest) -> ServiceOut:
    service = row.service
    replicas = [
        ReplicaOut(
            job=each.replica.job_id,
            state=each.state,
            revision=each.replica.revision,
            devices=list(each.devices),
        )
        for each in row.replicas
    ]
    return ServiceOut(
        name=service.name,
        owner=service.owner.get_username(),
        pool=service.pool_id,
        address=request.build_absolute_uri(f"/serve/{service.name}/"),
        state=service.state,
        reason=say_json(service.why),
        why=FactOut(**service.why) if service.why else None,
        runs=listing.words_of(service),
        revision=service.revision,
        replicas=replicas,
        ready=row.ready,
        min_replicas=service.min_replicas,
        max_replicas=service.max_replicas,
        idle_s=service.idle_s,
        deadline_s=service.deadline_s,
        parallel=service.parallel,
        most_waiting=service.most_waiting,
        health_path=service.health_path,
        traffic=TrafficOut(**service.traffic),
        asked_at=service.asked_at,
        keys=[each.name for each in service.keys.all()],
        created_at=service.created_at,
    )
