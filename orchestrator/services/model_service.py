"""Makes a service of a model: replicas with the code of the model's job, and our program that answers requests."""

import re
from typing import Final

from django.contrib.auth.models import User

from orchestrator.exceptions import Conflict, Impossible, Sentence
from orchestrator.jobs import datasets
from orchestrator.models import Job, ModelVersion, Service
from orchestrator.recipes.asking import ServeSpec
from orchestrator.recipes.creation import SAME, inherited, origin_of, same_for, script_of, words_of_training
from orchestrator.services import asking, creation, listing
from orchestrator.spec.job_spec import RECIPES, JobFields

HEALTH_PATH: Final = "/health"
# A training's own urgency is not that of a service.
_SAME: Final = tuple(name for name in SAME if name != "priority")
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
LONGEST_NAME: Final = 64


def serve(user: User, model: ModelVersion, asked: ServeSpec) -> Service:
    """Create a service that answers with a model; its first replica starts with the first request.

    Raises:
        Conflict: the model's job is gone, or its code, or the service's name is taken.
        NotFound: this person may not see that job.
        Impossible: nothing says which function builds the model, or no replica could run here.
        Malformed: the service's name has a wrong form.
    """
    origin = origin_of(user, model)
    if not origin.bundle:
        raise Conflict(
            Sentence(
                "The code of job {job} was never fetched, so nothing can build {model}.",
                job=origin.short_id,
                model=model.dataset.reference,
            )
        )
    function = asked.model or inherited(origin).get("model") or script_of(origin)
    spec = asking.parse(
        {
            "name": asked.name or name_for(model),
            "job": _fields(user, origin, model, asked, function),
            "min_replicas": asked.min_replicas,
            "health_path": HEALTH_PATH,
        }
    )
    return creation.create(user, spec, uploaded=origin.bundle)


def name_for(model: ModelVersion) -> str:
    """A name for the service of a model, as addresses have it."""
    name = _NOT_IN_NAMES.sub("-", model.dataset.name.lower()).strip("-")
    return name[:LONGEST_NAME].strip("-") or "model"


def services_of(models: list[ModelVersion], user: User) -> dict[int, list[Service]]:
    """By each model's key, the services that answer with it and that this person may see."""
    by_reference = {model.dataset.reference: model.pk for model in models}
    found: dict[int, list[Service]] = {model.pk: [] for model in models}
    for service in Service.objects.visible_to(user).select_related("owner") if models else ():
        for reference in listing.datasets_of(service):
            if reference in by_reference:
                found[by_reference[reference]].append(service)
    return found


def _fields(user: User, origin: Job, model: ModelVersion, asked: ServeSpec, function: str) -> JobFields:
    spec = origin.spec
    (name,) = datasets.names_in_a_job([model.dataset])
    gpus = min(1, spec.gpus) if asked.gpus is None else asked.gpus
    if not gpus and asked.gpu_memory_gib is not None:
        sentence = "A replica without a GPU has no memory of one; leave it out, or give one GPU."
        raise Impossible(sentence, fields={"gpu_memory_gib": [sentence]})
    fields = same_for(user, origin, _SAME)
    fields |= {
        "module": RECIPES,
        "args": [
            "serve",
            f"--weights={{dataset:{name}}}",
            f"--model={function}",
            *words_of_training(user, origin),
        ],
        "datasets": [model.dataset.reference],
        "gpus": gpus,
        "gpu_memory_gib": asked.gpu_memory_gib,
        "with_packages": [*dict.fromkeys([*spec.with_packages, *asked.with_packages])],
        "launcher": "direct",
        "tags": ["model"],
        "source": {"bundle": origin.bundle},
    }
    if gpus or not spec.gpus:  # without a GPU the replica goes where CPU slots are
        fields["pool"] = spec.pool
    return {each: value for each, value in fields.items() if value is not None}
