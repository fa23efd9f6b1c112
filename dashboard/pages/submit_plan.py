"""The plan for a submit form while it is being filled; submits nothing."""

from collections.abc import Mapping
from typing import TypedDict

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from berth.shared import words
from berth.shared.command_lines import command_line
from dashboard.pages.reader import signed_in
from dashboard.parts import forms, plan_changes
from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs.memory_claims import MemoryClaim
from orchestrator.jobs.submission import intake
from orchestrator.scheduler import passes
from orchestrator.scheduler.forecast.planning import SubmitPreview, plan
from orchestrator.scheduler.forecast.training_preview import TrainingPreview
from orchestrator.scheduler.forecast.wording import tell_outcomes
from orchestrator.sentences.errors import messages_of


class ShownOutcome(TypedDict):
    """When the job would end with a number of devices."""

    gpus: int
    text: str
    is_soonest: bool


class ShownPreview(TypedDict):
    """What a submit would lead to, in words."""

    starts_now: bool
    sentence: str
    devices: str
    when: str
    stops: int
    ahead: int
    claim: MemoryClaim
    training: TrainingPreview | None
    asked: list[ShownOutcome]  # with the requested number of devices
    others: list[ShownOutcome]
    changes: list[plan_changes.Offer]
    calibration: dict[str, int] | None
    command: str


class RefusedPreview(TypedDict):
    """Why there is no plan: the labels of the fields, with what is wrong."""

    errors: list[tuple[str, str]]
    command: str


@require_POST
def submit_plan(request: HttpRequest) -> HttpResponse:
    posted = {name: str(value)[: forms.MOST_TEXT + 1] for name, value in request.POST.items()}
    context = read_plan(signed_in(request), posted, forms.chosen_data(request.POST))
    return render(request, "dashboard/_submit_plan.html", {"plan": context})


def read_plan(user: User, posted: Mapping[str, str], datasets: list[str]) -> ShownPreview | RefusedPreview:
    """The plan in words with faster alternatives, or the errors by field; and the equivalent command."""
    data, errors = forms.read_fields(posted, datasets)
    if source := forms.read_source(posted):
        data["source"] = source
    file_name = posted.get("file_name", "")
    is_script = not any(data.get(name) for name in ("module", "command", "program"))
    code = file_name or (data.get("entrypoint", "train.py") if is_script else ".")
    command = command_line(data, forms.DEFAULTS, code)
    if file_name.endswith(".py") and is_script and not source:
        data["entrypoint"] = file_name  # its earlier runs have it too
    if not errors:
        try:
            return _show(plan(user, intake.parse_spec(data)), command)
        except OrchestratorError as error:
            errors = messages_of(error)
    named = {forms.FORM_NAMES.get(name, name): said for name, said in errors.items()}
    return {
        "errors": [(_label(name), " ".join(said)) for name, said in named.items()],
        "command": command,
    }


def _label(name: str) -> str:
    field = forms.BY_FORM_NAME.get(name)
    return forms.label_of(field) if field else ""


def _show(found: SubmitPreview, command: str) -> ShownPreview:
    labels = [device.label for device, _ in found.devices]
    when = words.start_range(found.start_earliest, found.start_latest, found.made_at)
    outcomes: list[ShownOutcome] = [
        {"gpus": each.gpus, "text": said, "is_soonest": each.is_soonest}
        for each, said in tell_outcomes(found)
    ]
    at_once = {each.gpus for each in found.outcomes if each.starts_now}
    changes = [one for one in found.search.changes if one.change != "gpus" or one.value not in at_once]
    return {
        "starts_now": found.starts_now,
        "sentence": found.sentence,
        "devices": words.listed(labels),
        "when": when,
        "stops": len(found.stops),
        "ahead": found.ahead,
        "claim": found.memory,
        "training": found.training,
        "asked": [each for each in outcomes if each["gpus"] == found.job.gpus],
        "others": [each for each in outcomes if each["gpus"] != found.job.gpus],
        "changes": plan_changes.told(changes),
        "calibration": passes.calibration(),
        "command": command,
    }
