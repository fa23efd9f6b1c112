"""Search for the command palette: jobs, devices, people, datasets, pages and actions."""

from collections.abc import Iterator
from typing import Annotated, Literal

from django.contrib.auth.models import User
from django.db.models import Q
from ninja import Query, Router
from pydantic import BaseModel, Field

from berth.shared import words
from berth.shared.arguments import typed_duration
from berth.shared.language import plural_text
from berth.shared.language import text as say
from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.reading import JsonObject
from orchestrator.api.resources.job_filters import JobFilters, find_jobs
from orchestrator.jobs.submission.updates import CHANGEABLE_WHEN_ENDED
from orchestrator.models import FINAL_STATES, WAITING_STATES, AdminState, Dataset, Device, Job, JobState, Role
from orchestrator.people import rights

router = Router()

MOST_OF_A_KIND = 6
SHORTEST_VERB = 3  # letters
PLACES = (
    ("Overview", "/"),
    ("Queue", "/queue"),
    ("Jobs", "/jobs"),
    ("Compare", "/compare"),
    ("Sweeps", "/sweeps"),
    ("Projects", "/projects"),
    ("Sessions", "/sessions"),
    ("Datasets", "/datasets"),
    ("Models", "/models"),
    ("Environments", "/environments"),
    ("Benchmarks", "/benchmarks"),
    ("Usage", "/usage"),
    ("Pools", "/pools"),
    ("Bookings", "/bookings"),
    ("Messages", "/notices"),
    ("Docs", "/docs/"),
    ("Account and tokens", "/account"),
    ("API docs", "/api/v1/docs"),
    ("Submit a job", "/submit"),
)


class SearchFor(BaseModel):
    q: Annotated[str, Field(max_length=200)] = ""


class ActOut(BaseModel):
    method: Literal["POST", "PATCH"]
    path: str
    body: JsonObject
    confirm: str | None = Field(description="ask this before: it names what is lost")


EditField = Literal["name", "priority", "time_limit_s", "tags"]


class EditOut(BaseModel):
    """A field to ask for, then to change by PATCH."""

    path: str
    field: EditField
    name: str = Field(description="of the job")
    value: str = Field(description="as people type it: 2h for a time limit, a line for each tag")


class HitOut(BaseModel):
    """A result: an address to open, an action to call on this API, or a field to change."""

    kind: Literal["job", "device", "user", "dataset", "page", "action"]
    title: str
    detail: str
    url: str | None = None
    action: ActOut | None = None
    edit: EditOut | None = None


class SearchOut(BaseModel):
    results: list[HitOut]


@router.get("", response=SearchOut)
def search(request: ApiRequest, wanted: Query[SearchFor]) -> SearchOut:
    """Everything whose name has all words of ``q``; without ``q`` the caller's newest jobs and the pages."""
    text = wanted.q.strip()
    hits = [
        *_actions(request.user, text),
        *_jobs(request.user, text),
        *_places(text),
        *_devices(text),
        *_people(request.user, text),
        *_datasets(request, text),
    ]
    return SearchOut(results=hits)


def _has_all(text: str, *names: str) -> bool:
    whole = " ".join(names).lower()
    return all(word in whole for word in text.lower().split())


def _known_as(job: Job) -> str:
    return f"#{job.short_id} {say(job.state.replace('_', ' '))}"


def _place_of(device: Device) -> str:
    return say("pool {pool}, {state}", pool=device.pool_id, state=say(device.admin_state))


def _jobs(user: User, text: str) -> Iterator[HitOut]:
    visible = Job.objects.visible_to(user).select_related("owner")
    matches = find_jobs(visible, JobFilters(q=text or None))[0].order_by("-id")
    for job in matches[:MOST_OF_A_KIND]:
        yield HitOut(
            kind="job",
            title=job.name,
            detail=f"{_known_as(job)}, {job.owner.get_username()}",
            url=f"/jobs/{job.pk}",
        )


def _devices(text: str) -> list[HitOut]:
    if not text:
        return []
    return [
        HitOut(
            kind="device",
            title=words.labelled(device.label),
            detail=f"{device.name}, {_place_of(device)}",
            url=f"/devices/{device.pk}",
        )
        for device in Device.objects.all()
        if _has_all(text, device.label, words.labelled(device.label), device.name, device.pk)
    ][:MOST_OF_A_KIND]


def _people(user: User, text: str) -> list[HitOut]:
    """People by name, with their jobs; people who operate no pool find only themselves."""
    if not text:
        return []
    people = User.objects.filter(is_active=True, username__icontains=text)
    if not rights.administers(user):
        people = people.filter(pk=user.pk)
    return [
        HitOut(
            kind="user",
            title=person.get_username(),
            detail=words.plural(Job.objects.filter(owner=person).unfinished().count(), "unfinished job"),
            url=f"/jobs?owner={person.get_username()}",
        )
        for person in people.order_by("username")[:MOST_OF_A_KIND]
    ]


def _datasets(request: ApiRequest, text: str) -> list[HitOut]:
    if not text:
        return []
    rows = Dataset.objects.visible_to(request.user).select_related("owner")
    matches = rows.filter(Q(name__icontains=text) | Q(description__icontains=text))
    return [
        HitOut(
            kind="dataset",
            title=dataset.reference,
            detail=dataset.description or dataset.path,
            url=f"/datasets?q={dataset.name}",
        )
        for dataset in matches[:MOST_OF_A_KIND]
    ]


def _places(text: str) -> list[HitOut]:
    return [
        HitOut(kind="page", title=say(name), detail=say("go there"), url=url)
        for name, url in PLACES
        if _has_all(text, name, say(name))
    ]


def _actions(user: User, text: str) -> list[HitOut]:
    """Actions for a query that starts with a verb, such as cancel, resume or drain."""
    typed, _, about = text.partition(" ")
    if len(typed) < SHORTEST_VERB:
        return []
    hits = []
    for verbs, act in ((JOB_VERBS, _job_actions), (EDIT_VERBS, _job_edits), (DEVICE_VERBS, _device_actions)):
        for verb in verbs:
            if any(name.startswith(typed.lower()) for name in (verb, say(verb))):
                hits += act(user, verb, about.strip())
    return hits


JOB_VERBS: dict[str, tuple[frozenset[JobState], JsonObject]] = {
    "cancel": (frozenset(JobState) - FINAL_STATES, {}),
    "hold": (WAITING_STATES - {JobState.HELD}, {}),
    "release": (frozenset({JobState.HELD}), {}),
    "resume": (FINAL_STATES, {"resume": True}),
}
EDIT_VERBS: dict[str, EditField] = {
    "priority": "priority",
    "rename": "name",
    "limit": "time_limit_s",
    "tags": "tags",
}
TITLES = {
    "cancel": "Cancel {what}",
    "hold": "Hold {what}",
    "release": "Release {what}",
    "resume": "Resume {what}",
    "priority": "Priority: {what}",
    "rename": "Rename: {what}",
    "limit": "Limit: {what}",
    "tags": "Tags: {what}",
    "drain": "Drain {what}",
    "enable": "Enable {what}",
}
DEVICE_VERBS = {"drain": AdminState.DRAINING, "enable": AdminState.ENABLED}


def _job_actions(user: User, verb: str, name: str) -> list[HitOut]:
    states, body = JOB_VERBS[verb]
    path = "retry" if verb == "resume" else verb
    own = Job.objects.filter(owner=user, state__in=states)
    matches = find_jobs(own, JobFilters(q=name or None))[0].order_by("-id")[:MOST_OF_A_KIND]
    return [
        HitOut(
            kind="action",
            title=say(TITLES[verb], what=job.name),
            detail=_known_as(job),
            action=ActOut(
                method="POST",
                path=f"/api/v1/jobs/{job.pk}/{path}",
                body=body,
                confirm=say("{job} will be stopped for good.", job=job.name) if verb == "cancel" else None,
            ),
        )
        for job in matches
    ]


def _job_edits(user: User, verb: str, name: str) -> list[HitOut]:
    """Own jobs with this field; ended ones keep their priority and limit."""
    field = EDIT_VERBS[verb]
    own = Job.objects.filter(owner=user)
    if rights.role_of(user) == Role.VIEWER:
        own = own.none()
    open_jobs = own if field in CHANGEABLE_WHEN_ENDED else own.unfinished()
    matches = find_jobs(open_jobs, JobFilters(q=name or None))[0].order_by("-id")[:MOST_OF_A_KIND]
    return [
        HitOut(
            kind="action",
            title=say(TITLES[verb], what=job.name),
            detail=_known_as(job),
            edit=EditOut(
                path=f"/api/v1/jobs/{job.pk}", field=field, name=job.name, value=typed_field(job, field)
            ),
        )
        for job in matches
    ]


def typed_field(job: Job, field: EditField) -> str:
    """A field's value as people type it."""
    if field == "time_limit_s":
        return "" if job.time_limit_s is None else typed_duration(job.time_limit_s)
    return "\n".join(job.tags) if field == "tags" else str(getattr(job, field))


def _device_actions(user: User, verb: str, name: str) -> list[HitOut]:
    if not rights.administers(user):
        return []
    devices = [
        device
        for device in Device.objects.exclude(admin_state=DEVICE_VERBS[verb])
        if _has_all(name, device.label, words.labelled(device.label), str(device.index), device.pk)
    ]
    return [
        HitOut(
            kind="action",
            title=say(TITLES[verb], what=words.labelled(device.label)),
            detail=_place_of(device),
            action=ActOut(
                method="PATCH",
                path=f"/api/v1/devices/{device.pk}",
                body={"state": DEVICE_VERBS[verb]},
                confirm=_drain_question(device) if verb == "drain" else None,
            ),
        )
        for device in devices[:MOST_OF_A_KIND]
    ]


def _drain_question(device: Device) -> str | None:
    held = device.leases.filter(ended_at=None).count()
    if not held:
        return None
    return plural_text(
        "{device} holds {count:,} job; running jobs continue, and nothing new starts there.",
        "{device} holds {count:,} jobs; running jobs continue, and nothing new starts there.",
        held,
        device=words.labelled(device.label),
    )
