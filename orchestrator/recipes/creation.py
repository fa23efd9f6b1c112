"""Makes the job of a recipe: the code, packages and data of the model's job, with our program instead of its script."""

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from django.contrib.auth.models import User
from django.utils import timezone

from berth.shared.arguments import by_name, number_or_text
from orchestrator.exceptions import Conflict, Impossible, NotFound, Sentence
from orchestrator.jobs import datasets, promotion
from orchestrator.jobs.submission import code, intake
from orchestrator.models import Job, ModelRecipe, ModelVersion
from orchestrator.people import rights
from orchestrator.recipes.asking import RecipeSpec, words_of
from orchestrator.spec.data_names import PLACEHOLDER
from orchestrator.spec.field_types import LONGEST_ARGUMENT
from orchestrator.spec.job_spec import RECIPES, JobFields

LONGEST_NAME: Final = 64
_OURS: Final = (RECIPES, "training.federated")  # a person's package may be called training, too
_OF_ANY_JOB: Final = ("checkpoint_dir", "output_dir")  # placeholders
_WHOLE: Final = re.compile(r"[+-]?\d{1,15}", re.ASCII)
# Of the model's job, what its recipes need as well.
SAME: Final = ("workdir", "environment", "python", "env", "secrets", "project", "visibility", "priority")


def create(user: User, model: ModelVersion, asked: RecipeSpec) -> ModelRecipe:
    """Submit the job of a recipe for a person who may see the model.

    Raises:
        Conflict: the model's job is gone, or its code.
        NotFound: this person may not see that job, or another model that is named.
        Impossible: nothing says which function builds the model, or the job can never run here.
        Malformed: the result's name has a wrong form.
    """
    origin = origin_of(user, model)
    options = inherited(origin) | asked.options()
    if "model" not in options:
        options["model"] = script_of(origin)
    others = _others(user, model, asked)
    name = _result_name(model, asked)
    spec = intake.parse_spec(_fields(user, origin, model, asked, options, others))
    recipe = ModelRecipe(
        kind=asked.recipe,
        source=model,
        source_reference=model.dataset.reference,
        options={key: value for key, value in options.items() if value is not None},
        result_name=name,
        created_at=timezone.now(),
    )

    def beside(job: Job) -> None:
        recipe.job = job
        recipe.save(force_insert=True)

    intake.accept(user, spec, beside=beside)
    return recipe


def _others(user: User, model: ModelVersion, asked: RecipeSpec) -> list[ModelVersion]:
    """The models beside the first one, each once."""
    others = [promotion.find(each, user) for each in asked.others]
    seen = {model.pk}
    for each in others:
        if each.pk in seen:
            sentence = Sentence(
                "{reference} is named twice; an average or ensemble takes each model once.",
                reference=each.dataset.reference,
            )
            raise Impossible(sentence, fields={"others": [sentence]})
        seen.add(each.pk)
    return others


def origin_of(user: User, model: ModelVersion) -> Job:
    job = model.job
    if job is None:
        raise Conflict(
            Sentence(
                "The job that {reference} came from is gone, and with it the code that builds the model. Make a model of a job that is still there.",
                reference=model.dataset.reference,
            )
        )
    if not Job.objects.visible_to(user).filter(pk=job.pk).exists():
        raise NotFound(
            Sentence(
                "You may not see the job that {reference} came from, so its code cannot run.",
                reference=model.dataset.reference,
            )
        )
    if not job.bundle and job.checkout is None:
        raise Conflict(
            Sentence(
                "The code of job {short_id} is gone, so nothing can build {reference}.",
                short_id=job.short_id,
                reference=model.dataset.reference,
            )
        )
    if job.spec_fields.get("image"):
        raise Conflict(
            Sentence(
                "{reference} was trained in a container image, where recipes and services of models cannot run yet.",
                reference=model.dataset.reference,
            )
        )
    return job


def inherited(origin: Job) -> dict[str, Any]:
    """The functions that an earlier recipe got: its result is built in the same way.

    A student is built by its own function.
    """
    earlier = ModelRecipe.objects.filter(job=origin).first()
    if earlier is None:
        return {}
    options: Mapping[str, Any] = earlier.options
    kept = {name: options[name] for name in ("model", "data", "evaluate") if name in options}
    if earlier.kind == "distil":
        kept.setdefault("data", options["model"].partition(":")[0])
        kept["model"] = options["student"]
    return kept


def script_of(origin: Job) -> str:
    spec = origin.spec
    if spec.module is not None:
        return spec.module
    if spec.entrypoint is None or not spec.entrypoint.endswith(".py"):
        sentence = "Name the function that builds the model, such as train.py:build_model; the job started a command."
        raise Impossible(sentence, fields={"model": [sentence]})
    return posixpath.relpath(spec.entrypoint, spec.folder)


def words_of_training(user: User, origin: Job, data: Iterable[str] = ()) -> list[str]:
    """The training's own arguments, for the code that builds its model: as a command line, and by name.

    Args:
        data: references of what the job reads; placeholders of other data become plain words.
    """
    trained = _training_of(user, origin)
    if trained is None:
        return []
    fill = partial(_filled_in, trained, {_name_of(each) for each in data})
    args = [PLACEHOLDER.sub(fill, word) for word in rights.texts_of(trained, user.pk)["args"]]
    values = {name: _value(text) for name, text in by_name(args).items()}
    words = [
        f"--script-arguments={json.dumps(args, ensure_ascii=False)}",
        f"--trained-with={json.dumps(values, ensure_ascii=False)}",
    ]
    return words if args and all(len(word) <= LONGEST_ARGUMENT for word in words) else []


def _training_of(user: User, origin: Job) -> Job | None:
    """The training that a model comes from, over the recipes between; None if it is ours or may not be seen."""
    seen: Job | None = origin
    while seen and (recipe := ModelRecipe.objects.filter(job=seen).select_related("source").first()):
        source = recipe.source.job_id if recipe.source else None
        seen = Job.objects.visible_to(user).filter(pk=source).first() if source else None
    is_ours = seen is not None and seen.spec.module in _OURS
    return None if is_ours else seen


def _filled_in(trained: Job, data: Collection[str], hit: re.Match[str]) -> str:
    """A placeholder as this job can fill it in; a plain word else."""
    name: str = hit[0][1:-1]
    if name == "array_index" and trained.array_index is not None:
        return str(trained.array_index)
    is_known = _name_of(hit["data"]) in data if hit["kind"] == "dataset" else name in _OF_ANY_JOB
    return hit[0] if is_known else name


def _value(text: str) -> bool | int | float | str:
    """An argument as a parameter of a function: a flag is true."""
    if text == "yes":
        return True
    return int(text) if _WHOLE.fullmatch(text) else number_or_text(text)


def _result_name(model: ModelVersion, asked: RecipeSpec) -> str:
    suffix = asked.suffix
    if suffix is None:
        return ""
    name = asked.name or f"{model.dataset.name[: LONGEST_NAME - len(suffix) - 1]}-{suffix}"
    datasets.check_names(name, "1", "")
    return name


def same_for(user: User, origin: Job, names: tuple[str, ...] = SAME) -> JobFields:
    """What a job of this person's takes over from the model's job; values of the environment are only its owner's."""
    hidden = set() if origin.owner_id == user.pk else {"env"}
    return {name: origin.spec_fields.get(name) for name in names if name not in hidden}


def _fields(
    user: User,
    origin: Job,
    model: ModelVersion,
    asked: RecipeSpec,
    options: Mapping[str, Any],
    others: list[ModelVersion],
) -> JobFields:
    """The job's fields; data of the model's job stays, except other models that it read."""
    spec, chosen = origin.spec, [model, *others]
    shown = rights.texts_of(origin, user.pk)["datasets"]
    models = {each.dataset.reference for each in chosen}
    read = ModelVersion.objects.filter(dataset__name__in=[_name_of(each) for each in shown])
    models |= {each.dataset.reference for each in read.select_related("dataset__owner")}
    data = [each for each in shown if each not in models]
    names = datasets.names_in_a_job([each.dataset for each in chosen])
    gpus = min(1, spec.gpus) if asked.gpus is None else asked.gpus
    fields = same_for(user, origin)
    fields |= {
        "name": asked.job_name or f"{asked.recipe} {model.dataset.name}@{model.dataset.version}",
        "module": RECIPES,
        "args": words_of(
            asked.recipe,
            options,
            [f"{{dataset:{name}}}" for name in names],
            words_of_training(user, origin, data),
        ),
        "datasets": [*(each.dataset.reference for each in chosen), *data],
        "gpus": gpus,
        "gpu_memory_gib": asked.gpu_memory_gib,
        "with_packages": [*dict.fromkeys([*spec.with_packages, *asked.packages])],
        "launcher": "direct",
        "max_retries": 0,
        "tags": ["recipe"],
        "source": code.source_of(origin),
    }
    if gpus or not spec.gpus:  # without a GPU the job goes where CPU slots are
        fields["pool"] = spec.pool
    return {name: value for name, value in fields.items() if value is not None}


def _name_of(reference: str) -> str:
    return reference.rpartition("/")[2].partition("@")[0]
