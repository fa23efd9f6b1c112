"""The recipes of a model, with their reports and outcomes as people read them."""

from collections.abc import Sequence

from django.db.models import Q, QuerySet

from orchestrator.models import ModelRecipe, ModelVersion
from orchestrator.recipes.report import ReportOut
from orchestrator.sentences.recipes import say_outcome


def of_model(model: ModelVersion) -> QuerySet[ModelRecipe]:
    """The recipes of a model, and the one that made it, newest first."""
    return of_models([model])


def of_models(models: Sequence[ModelVersion]) -> QuerySet[ModelRecipe]:
    """The recipes of several models, and those that made them, newest first."""
    rows = ModelRecipe.objects.filter(Q(source__in=models) | Q(result__in=models))
    return rows.select_related("job", "result__dataset__owner").order_by("-pk")


def report_of(recipe: ModelRecipe) -> ReportOut | None:
    return ReportOut.model_validate(recipe.report) if recipe.report else None


def say(recipe: ModelRecipe, report: ReportOut | None) -> str:
    """The outcome of a recipe as a sentence; empty while its job has not ended."""
    measured = report and (report.after or report.before)
    first = measured.metrics[0] if measured and measured.metrics else None
    gate = report.gate if report else None
    return say_outcome(
        recipe.outcome,
        result=None if recipe.result is None else recipe.result.dataset.reference,
        metric=first.name if first else None,
        value=first.value if first else None,
        limit=gate.limit if gate else None,
        higher_is_better=gate is None or gate.higher_is_better,
        error=recipe.error,
    )
