"""The submit form: drop a script, choose devices, run."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypedDict, cast
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from django.core.signing import BadSignature, Signer
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from berth.shared.field import JobField
from berth.shared.job_fields import STARTS
from berth.shared.language import text
from dashboard.pages.reader import signed_in
from dashboard.pages.submit_plan import read_plan
from dashboard.parts import forms
from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs import example
from orchestrator.jobs.submission import intake, starts
from orchestrator.models import AdminState, Dataset, Job, JobSecret, Pool, ProjectMember
from orchestrator.people import rights
from orchestrator.sentences.errors import messages_of, said, sentence_of
from orchestrator.spec.job_spec import JobFields
from orchestrator.spec.remote_data import looks_remote
from orchestrator.store.bundles import bundles, scripts

ARCHIVE_HEADS = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b")
MOST_NAMED = 100  # unfinished jobs to start after
MOST_DATASETS_SHOWN = 200
# What a link to "Clone and edit" may fill in, as a job's page does with a change that would help.
LINKED = frozenset(
    {
        "args",
        "gpus",
        "gpu_memory_gib",
        "gpu_memory_limit_gib",
        "memory_gib",
        "pool",
        "priority",
        "time_limit_h",
    }
)


@dataclass(slots=True)
class Code:
    """The upload behind a form, stored by hash so that nobody uploads it twice."""

    sha256: str = ""
    name: str = ""
    entrypoint: str = ""  # the script to run if the form names none
    warnings: list[str] = field(default_factory=list)
    signed: str = ""  # the signed hash in the form: proves that this person uploaded it


@require_http_methods(["GET", "POST"])
def submit(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        texts, code = _start_from(request)
        return _page(request, texts, code, {})
    texts = {
        name: value[: forms.MOST_TEXT + 1]
        for name, value in request.POST.dict().items()
        if isinstance(value, str)
    }
    source = forms.read_source(texts)
    code, errors = (Code(), {}) if source and not request.FILES.get("file") else take_code(request)
    if code.sha256 and source:
        errors["git_url"] = [
            said("Give a file or a repository, not both: empty the address, or choose no file.")
        ]
    data, unreadable = forms.read_fields(texts, forms.chosen_data(request.POST))
    for name, texts_of in unreadable.items():
        errors.setdefault(name, []).extend(texts_of)
    if code.entrypoint and not any(data.get(name) for name in STARTS):
        data["entrypoint"] = code.entrypoint
    if code.sha256:
        data["source"] = {"bundle": code.sha256}
        data |= _commit_of(request, code)
    elif source:
        data["source"] = source
    accepted, status = _try_to_accept(request, data, errors)
    if accepted is None:
        return _page(request, texts, code, errors, status=status)
    for warning in dict.fromkeys([*code.warnings, *accepted.warnings]):
        messages.warning(request, said(warning))
    return redirect("job", job_id=accepted.job.pk)


@require_POST
def run_example(request: HttpRequest) -> HttpResponse:
    try:
        return redirect("job", job_id=example.submit(signed_in(request)).pk)
    except OrchestratorError as error:
        messages.error(request, sentence_of(error))
        return redirect("overview")


def _try_to_accept(
    request: HttpRequest, data: JobFields, errors: dict[str, list[str]]
) -> tuple[intake.Accepted | None, int]:
    """Submit the job; if there are errors already, only collect the others, to show all at once."""
    try:
        spec = intake.parse_spec(data)
        if errors:
            return None, 400
        key = request.POST.get("key", "")[:100] or None
        uploaded = spec.source.bundle if spec.source else None  # signed, or stored just now
        accepted = intake.accept(
            signed_in(request), spec, uploaded=uploaded, idempotency_key=key, endpoint="form"
        )
        return accepted, 200
    except OrchestratorError as error:
        for name, texts_of in messages_of(error).items():
            if name == "Idempotency-Key":
                name, texts_of = (
                    "",
                    [said("This form was submitted before. Press Run again to submit it as another job.")],
                )
            place = "git_url" if name == "source" and data.get("source", {}).get("git") else name
            errors.setdefault(forms.FORM_NAMES.get(place, place), []).extend(texts_of)
        return None, error.status


def take_code(request: HttpRequest) -> tuple[Code, dict[str, list[str]]]:
    """Store the new upload, or reuse that of an earlier try."""
    upload = request.FILES.get("file")
    kept = Code(name=request.POST.get("bundle_name", "")[:200])
    try:
        if isinstance(upload, UploadedFile):
            return _store(upload), {}
        if signed := request.POST.get("bundle", "")[:200]:
            kept.sha256 = signer(request).unsign(signed)
            stored = bundles.open_bundle(settings.HOME.bundles, kept.sha256)
            kept.entrypoint = starts.only_script([file.path for file in stored.files])
            return kept, {}
    except BadSignature:
        return Code(), {"file": [said("The earlier upload has expired; upload the code again.")]}
    except OrchestratorError as error:
        return Code(), {"file": [sentence_of(error)]}
    return Code(), {"file": [said("Choose a script (.py) or an archive (.zip, .tar.gz) with one inside.")]}


def _commit_of(request: HttpRequest, code: Code) -> JobFields:
    """The commit of the job that a form was cloned from, if its code is still what is submitted."""
    try:
        earlier = Job.objects.visible_to(request.user).filter(pk=UUID(request.POST.get("from", ""))).first()
    except ValueError:
        return {}
    if earlier is None or earlier.bundle != code.sha256 or not earlier.spec_fields.get("git"):
        return {}
    return {"git": earlier.spec_fields["git"]}


def signer(request: HttpRequest) -> Signer:
    """A signer for one person: another person's hash is refused, however it was learned."""
    return Signer(salt=f"bundle of user {signed_in(request).pk}")


def _store(upload: "UploadedFile[Any]") -> Code:
    """Store an upload; its content decides whether it is a script or an archive."""
    name = upload.name or "script.py"
    head = upload.read(512)
    upload.seek(0)
    if head.startswith(ARCHIVE_HEADS) or head[257:262] == b"ustar":
        stored = bundles.store_archive(settings.HOME.bundles, cast(BinaryIO, upload))
        return Code(stored.sha256, name, starts.only_script([file.path for file in stored.files]))
    data = upload.read(bundles.BundleLimits().script_bytes + 1)
    warnings = scripts.check_script(name, data)
    stored = bundles.store_script(settings.HOME.bundles, name, data)
    return Code(stored.sha256, name, stored.files[0].path, warnings)


def _start_from(request: HttpRequest) -> tuple[dict[str, str], Code]:
    """The texts of an empty form, or of one cloned from an earlier job."""
    try:
        earlier = Job.objects.visible_to(request.user).filter(pk=UUID(request.GET.get("from", ""))).first()
    except ValueError:
        earlier = None
    if earlier is None:
        return forms.default_texts(), Code()
    texts = forms.texts_of(earlier, shown=rights.texts_of(earlier, request.user.pk))
    env = rights.environment_of(earlier, request.user.pk)
    if None in env.values():
        texts["env"] = ""  # names alone would set the variables to empty values
    texts["from"] = str(earlier.pk)
    texts |= {name: request.GET[name][: forms.MOST_TEXT] for name in LINKED & request.GET.keys()}
    said_code = _("the code of {name} #{id}").format(name=earlier.name, id=earlier.short_id)
    name = said_code if earlier.bundle else ""
    return texts, Code(earlier.bundle, name)


def _page(
    request: HttpRequest,
    texts: dict[str, str],
    code: Code,
    errors: dict[str, list[str]],
    *,
    status: int = 200,
) -> HttpResponse:
    chosen = chosen_data(request, texts)
    pools = [pool_choice(pool) for pool in Pool.objects.prefetch_related("devices")]
    shown = {"file", "git_url", *forms.BY_FORM_NAME}
    if code.sha256:
        code.signed = signer(request).sign(code.sha256)
    context = {
        "nav": "submit",
        "code": code,
        "replaces": bool(code.sha256 and request.GET.get("replace")),
        "main_fields": filled(forms.MAIN, texts, errors),
        "more_fields": filled(forms.MORE, texts, errors),
        "more_open": any(field.form_name in errors for field in forms.MORE),
        "errors": errors,
        "git": {name: texts.get(f"git_{name}", "") for name in forms.GIT_FIELDS},
        "from": texts.get("from", ""),
        "secrets": list(
            JobSecret.objects.filter(owner_id=signed_in(request).pk).values_list("name", flat=True)
        ),
        "other_errors": [text for name, texts_of in errors.items() if name not in shown for text in texts_of],
        "pools": pools,
        "pool": texts.get("pool", "default"),
        "project": texts.get("project", ""),
        "projects": _projects(signed_in(request), texts.get("project", "")),
        "gpus": texts.get("gpus", "1"),
        "quick": [
            count for count in (1, 2, 4, 8) if count <= max((pool["devices"] for pool in pools), default=0)
        ],
        **data_choice(request, chosen),
        "key": secrets.token_hex(16),
        "unfinished": list(
            Job.objects.filter(owner_id=signed_in(request).pk).unfinished().order_by("-id")[:MOST_NAMED]
        ),
        "plan": read_plan(signed_in(request), texts, chosen),
        "last": Job.objects.filter(owner_id=signed_in(request).pk).order_by("-id").first(),
    }
    return render(request, "dashboard/submit.html", context, status=status)


def chosen_data(request: HttpRequest, texts: Mapping[str, str]) -> list[str]:
    """The datasets and addresses of a form: as chosen, or as the job had them that the form was opened from."""
    return forms.chosen_data(request.POST) or forms.names(texts.get("datasets", ""))


class DataChoice(TypedDict):
    datasets: list[str]
    addresses: str
    chosen_datasets: list[str]


def data_choice(request: HttpRequest, chosen: list[str]) -> DataChoice:
    """What the field of datasets shows; one that is beyond the list, or no longer registered, stays: the submit says so."""
    usable = Dataset.objects.registered() | Dataset.objects.pushed_by(signed_in(request).pk)
    registered = usable.select_related("owner").order_by("name", "-created_at")[:MOST_DATASETS_SHOWN]
    references = [dataset.reference for dataset in registered]
    addresses = [each for each in chosen if looks_remote(each)]
    further = (name for name in chosen if name not in (*references, *addresses))
    return {
        "datasets": [*references, *further],
        "addresses": "\n".join(addresses),
        "chosen_datasets": chosen,
    }


def _projects(user: User, chosen: str) -> list[str]:
    """The person's projects, and the one of a job that is cloned: the submit says if they are not in it."""
    own = ProjectMember.objects.filter(user=user).values_list("project_id", flat=True)
    return sorted({*own, *([chosen] if chosen else [])})


class PoolChoice(TypedDict):
    name: str
    devices: int
    kind: str


class FilledField(TypedDict):
    field: JobField
    label: str
    hint: str
    value: str
    errors: list[str]
    control: str
    placeholder: str


def pool_choice(pool: Pool) -> PoolChoice:
    usable = [device for device in pool.devices.all() if device.admin_state != AdminState.DISABLED]
    return {
        "name": pool.name,
        "devices": len(usable),
        "kind": text(usable[0].label.rsplit(" ", 1)[0]) if usable else "",
    }


def filled(
    fields: Sequence[JobField], texts: dict[str, str], errors: dict[str, list[str]]
) -> list[FilledField]:
    """What the template shows of each field, with its text and its errors."""
    return [
        {
            "field": field,
            "label": forms.label_of(field),
            "hint": forms.hint_of(field),
            "value": texts.get(field.form_name, ""),
            "errors": errors.get(field.form_name, []),
            "control": _control(field, texts.get(field.form_name, "")),
            "placeholder": forms.placeholder(field),
        }
        for field in fields
    ]


def _control(field: JobField, text: str) -> str:
    """The kind of the control; one line would lose the line ends of a text."""
    if field.kind in ("assignments", "lines") or "\n" in text:
        return "lines"
    return {"count": "number", "number": "number", "switch": "switch", "choice": "choice"}.get(
        field.kind, "text"
    )
