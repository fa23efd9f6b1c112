"""Takes over what an ended recipe left: its report, and a model of its result if the gate passed."""

import logging

from django.db import connection, transaction
from django.utils import timezone

from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs import promotion
from orchestrator.models import FINAL_STATES, Job, JobState, ModelRecipe, ModelVersion, RecipeOutcome
from orchestrator.recipes.report import ReportOut, read_report
from orchestrator.store.checkpoints.manifest import NotVerified

logger = logging.getLogger(__name__)
MOST_AT_ONCE = 20


def ended() -> list[int]:
    """Recipes whose job has ended, and that were not taken over yet."""
    waiting = ModelRecipe.objects.filter(ended_at=None)
    if not waiting.exists():
        return []
    rows = waiting.filter(job__state__in=FINAL_STATES) | waiting.filter(job=None)
    return list(rows.values_list("pk", flat=True)[:MOST_AT_ONCE])


def take_over_all(keys: list[int]) -> None:
    """Take over several recipes in a thread: copying a result may take long."""
    try:
        for key in keys:
            take_over(ModelRecipe.objects.select_related("job__owner").get(pk=key))
    except Exception:
        logger.exception("Taking over a recipe failed; retrying")
    finally:
        connection.close()


def take_over(recipe: ModelRecipe) -> None:
    """Keep the report of an ended recipe, and make a model of its result.  Doing it again changes nothing."""
    job = recipe.job
    report = read_report(job) if job is not None else None
    if job is None or job.state != JobState.SUCCEEDED or report is None:
        _end(recipe, RecipeOutcome.JOB_ENDED, report, error=(report and report.error) or "")
    elif report.gate is not None and not report.gate.passed:
        _end(recipe, RecipeOutcome.GATE_FAILED, report)
    elif not recipe.result_name:
        _end(recipe, RecipeOutcome.MEASURED, report)
    else:
        try:
            model = _promote(recipe, job, report)
        except (OrchestratorError, NotVerified) as error:
            _end(recipe, RecipeOutcome.NOT_KEPT, report, error=str(error))
        else:
            _end(recipe, RecipeOutcome.MADE, report, result=model)


def _promote(recipe: ModelRecipe, job: Job, report: ReportOut) -> ModelVersion:
    return promotion.promote(
        job.owner,
        job,
        name=recipe.result_name,
        checkpoint=f"checkpoint {report.checkpoint}" if report.checkpoint else None,
        description=f"{recipe.kind} of {recipe.source_reference}"[:200],
    )


def _end(
    recipe: ModelRecipe,
    outcome: RecipeOutcome,
    report: ReportOut | None,
    *,
    error: str = "",
    result: ModelVersion | None = None,
) -> None:
    if result is not None and ModelRecipe.objects.filter(result=result).exclude(pk=recipe.pk).exists():
        result = None  # the same files as an earlier recipe's, whose model it is
    with transaction.atomic():
        ModelRecipe.objects.filter(pk=recipe.pk).update(
            outcome=outcome,
            error=error,
            report=report.model_dump(mode="json") if report else {},
            result=result,
            ended_at=timezone.now(),
        )
