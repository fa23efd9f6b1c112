"""Ensembles of a sweep's best trials: a follow-up job that averages their weights, or their answers."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from django.contrib.auth.models import User
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from orchestrator.exceptions import Conflict, Sentence
from orchestrator.jobs import promotion
from orchestrator.models import Checkpoint, ModelRecipe, RungReport, Sweep, SweepTrial
from orchestrator.recipes import creation
from orchestrator.recipes.asking import Function, RecipeSpec
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.history_rows import cost_of, sign_of

MOST_MEMBERS = 16
LONGEST_PART = 40  # of the sweep's name in the names of its models
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class EnsembleSpec(BaseModel):
    """The best trials of a sweep as one model; functions are of the trials' code, as train.py:build_model."""

    model_config = ConfigDict(extra="forbid")

    best: Annotated[StrictInt, Field(ge=2, le=MOST_MEMBERS)] = Field(
        3, description="trials with the best values, among those that have a checkpoint"
    )
    by: Literal["predictions", "weights"] = Field(
        "predictions", description="the mean of their answers; or of their weights, for trials of one shape"
    )
    model: Function | None = Field(
        None,
        description="builds the model; gets the settings of a trial that it has parameters for; "
        "default: build_model of the script",
    )
    data: Function | None = Field(None, description="returns the evaluation data; default: of the same file")
    evaluate: Function | None = Field(None, description="of model and data; returns metrics by name")


def create(user: User, sweep: Sweep, asked: EnsembleSpec) -> ModelRecipe:
    """Keep the best trials as models, and submit the job that puts them together.

    Raises:
        Conflict: fewer than two trials have a value and a checkpoint.
        NotFound, Malformed, TooLarge, Impossible: as of models and their recipes.
    """
    trials = _best_trials(sweep, asked.best)
    if len(trials) < 2:
        raise Conflict(
            Sentence(
                "An ensemble needs two trials with a value and a checkpoint; {sweep} has {trials}. Only checkpoints that are still on disk count.",
                sweep=sweep.name,
                trials=len(trials),
            )
        )
    part = _NOT_IN_NAMES.sub("-", sweep.name)[:LONGEST_PART].strip("-._") or "sweep"
    models = [
        promotion.promote(
            user,
            trial.job,
            name=f"{part}-{sweep.short_id}-{trial.number}",
            description=f"Trial {trial.number} of the sweep {sweep.name} #{sweep.short_id}",
        )
        for trial in trials
    ]
    space = read_space(sweep.space)
    functions = asked.model_dump(include={"model", "data", "evaluate"}, exclude_none=True)
    settings = [space.handed_over(trial.settings) for trial in trials] if asked.by == "predictions" else None
    spec = RecipeSpec(
        recipe="ensemble" if asked.by == "predictions" else "average",
        others=[model.dataset.reference for model in models[1:]],
        **functions,
        **({"settings": settings} if settings else {"name": f"{part}-{sweep.short_id}-average"}),
    )
    return creation.create(user, models[0], spec)


def _best_trials(sweep: Sweep, count: int) -> Sequence[SweepTrial]:
    """The trials with the best values of the first metric, the best first, among those with a checkpoint."""
    sign = sign_of(sweep)
    costs: dict[int, float] = {}
    for trial, value in RungReport.objects.filter(trial__sweep=sweep).values_list("trial", "value"):
        costs[trial] = min(cost_of(value, sign), costs.get(trial, float("inf")))
    kept = Checkpoint.objects.filter(job__trial__sweep=sweep).values("job")
    trials = SweepTrial.objects.filter(sweep=sweep, job__in=kept).select_related("job")
    known = [trial for trial in trials if costs.get(trial.pk, float("inf")) < float("inf")]
    return sorted(known, key=lambda trial: (costs[trial.pk], trial.number))[:count]
