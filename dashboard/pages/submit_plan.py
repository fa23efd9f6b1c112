"""What the filled submit form would lead to: asked while it is filled, nothing is submitted."""

import shlex
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from berth import words
from dashboard.pages.reader import signed_in
from dashboard.parts import forms, plan_changes
from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs.submission import intake
from orchestrator.scheduler import passes
from orchestrator.scheduler.forecast.planning import Plan, plan
from orchestrator.scheduler.forecast.wording import tell_outcomes

LABELS = {one.name: one.label for one in forms.FIELDS} | {
    "gpus": "Devices",
    "pool": "Pool",
    "datasets": "Datasets",
}


@require_POST
def submit_plan(request: HttpRequest) -> HttpResponse:
    posted = {name: str(value)[: forms.MOST_TEXT] for name, value in request.POST.items()}
    context = read_plan(signed_in(request), posted, request.POST.getlist("datasets"))
    return render(request, "dashboard/_submit_plan.html", {"plan": context})


def read_plan(user: User, posted: Mapping[str, str], datasets: list[str]) -> dict[str, Any]:
    """The plan in words with what would start it sooner, or what is wrong, field by field; and the command."""
    data, errors = forms.read_fields(posted, datasets)
    file_name = posted.get("file_name", "")
    command = as_command(data, file_name)
    if file_name.endswith(".py"):
        data["entrypoint"] = file_name  # its earlier runs have it too
    if not errors:
        try:
            return {**_show(plan(user, intake.parse_spec(data))), "command": command}
        except OrchestratorError as error:
            errors = error.fields or {"": [str(error)]}
    named = {forms.FORM_NAMES.get(name, name): said for name, said in errors.items()}
    return {
        "errors": [(LABELS.get(name, ""), " ".join(said)) for name, said in named.items()],
        "command": command,
    }


def _show(found: Plan) -> dict[str, Any]:
    labels = [device.label for device, _ in found.devices]
    when = words.start_range(found.start_earliest, found.start_latest, found.made_at)
    outcomes = [
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
    }


def as_command(data: Mapping[str, Any], file_name: str) -> str:
    """The same job for the command line."""
    parts = ["berth", "run"]
    for name, option in _OPTIONS.items():
        if name in data and data[name] != _DEFAULTS.get(name):
            parts += [option, f"{data[name]:g}" if isinstance(data[name], float) else str(data[name])]
    if limit_s := data.get("time_limit_s"):
        parts += ["--time-limit", f"{limit_s / 60:g}m"]
    if (grace_s := data.get("grace_period_s")) is not None:
        parts += ["--grace-period", f"{grace_s:g}s"]
    for name, option in (("datasets", "--data"), ("tags", "--tag")):
        for each in data.get(name, []):
            parts += [option, each]
    for each in data.get("depends_on", []):
        parts += ["--after", each] if isinstance(each, str) else ["--after-any", each["job"]]
    for name, value in data.get("env", {}).items():
        parts += ["--env", f"{name}={value}"]
    if data.get("preemptible"):
        parts.append("--preemptible")
    if data.get("resume_args"):
        parts += ["--resume-args", shlex.join(data["resume_args"])]
    parts.append(file_name or data.get("entrypoint") or "train.py")
    if data.get("args"):
        parts += ["--", *data["args"]]
    return shlex.join(parts)


_OPTIONS = {
    "gpus": "-g",
    "gpu_memory_gib": "--memory",
    "name": "--name",
    "pool": "--pool",
    "priority": "--priority",
    "max_retries": "--retries",
    "not_before": "--at",
    "array": "--array",
    "total_steps": "--steps",
    "cpus": "--cpus",
    "memory_gib": "--ram",
    "checkpoint_glob": "--checkpoint-glob",
}
_DEFAULTS = {"gpus": 1, "pool": "default", "priority": 50, "max_retries": 3}
