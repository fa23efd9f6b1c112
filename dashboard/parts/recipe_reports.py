"""What came of a model's recipes, as a page shows it: before, after, the gate, and the model that was made."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from berth.shared import words
from orchestrator.models import Job, JobState, ModelRecipe, ModelVersion, RecipeOutcome
from orchestrator.recipes import listing
from orchestrator.recipes.report import MeasuredOut, MetricOut, ReportOut
from orchestrator.sentences.errors import said

# By outcome: the state of a job that looks as it should, and its words.
LOOKS = {
    RecipeOutcome.MADE: (JobState.SUCCEEDED, "became a model"),
    RecipeOutcome.MEASURED: (JobState.SUCCEEDED, "measured"),
    RecipeOutcome.GATE_FAILED: (JobState.FAILED, "gate failed"),
    RecipeOutcome.NOT_KEPT: (JobState.FAILED, "not kept"),
    RecipeOutcome.JOB_ENDED: (JobState.FAILED, "no result"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table: one figure before and after."""

    name: str
    before: str
    after: str
    gate: str = ""  # of the metric that decides


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """One recipe with what a reader may see of it."""

    recipe: ModelRecipe
    report: ReportOut | None
    job: Job | None  # None: it is gone, or the reader may not see it
    result: ModelVersion | None  # likewise
    look: str
    state: str
    detail: str
    figures: list[Figure]

    @property
    def is_open(self) -> bool:
        return not self.recipe.outcome

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Figures of this recipe alone, some of which are words."""
        found = self.report.facts if self.report else {}
        return [
            (pgettext("of a report", name), _("yes") if value == "yes" else _text(value))
            for name, value in found.items()
        ]

    @property
    def asked(self) -> str:
        """The options that it was asked with, in one line."""
        options = self.recipe.options
        return ", ".join(
            name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {_text(value)}"
            for name, value in options.items()
            if name not in {"model", "data", "evaluate"} and value not in (False, [], None)
        )


def rows_of(recipes: Iterable[ModelRecipe], user: User) -> list[RecipeRow]:
    """The rows of several recipes, in their order."""
    found = list(recipes)
    jobs = Job.objects.visible_to(user).in_bulk([each.job_id for each in found if each.job_id])
    results = {
        each.pk: each
        for each in ModelVersion.objects.visible_to(user)
        .filter(pk__in=[each.result_id for each in found if each.result_id])
        .select_related("dataset__owner")
    }
    return [_row(each, jobs.get(each.job_id), results.get(each.result_id or 0)) for each in found]


def _row(recipe: ModelRecipe, job: Job | None, result: ModelVersion | None) -> RecipeRow:
    report = listing.report_of(recipe)
    if recipe.outcome:
        look, state = LOOKS[RecipeOutcome(recipe.outcome)]
        state = said(state)
    else:
        look = JobState(recipe.job.state) if recipe.job else JobState.QUEUED
        state = said(look.replace("_", " "))
    return RecipeRow(
        recipe,
        report,
        job,
        result,
        str(look),
        state,
        listing.say(recipe, report),
        figures_of(report) if report else [],
    )


def figures_of(report: ReportOut) -> list[Figure]:
    """Metrics first, then size, latency and memory; the metric that decides has its limit."""
    before, after = report.before, report.after
    names = [each.name for each in (after or before).metrics] if after or before else []  # type: ignore[union-attr]
    rows = [Figure(name, _metric(before, name), _metric(after, name), _gate(report, name)) for name in names]
    if before or after:
        rows += [
            Figure(_("size"), *(words.size(each.size_bytes) if each else "" for each in (before, after))),
            Figure(
                _("latency"),
                *(f"{words.value(each.latency_ms)} ms" if each else "" for each in (before, after)),
            ),
            Figure(_("memory"), *(words.size(each.memory_bytes) if each else "" for each in (before, after))),
        ]
    return rows


def _metric(measured: MeasuredOut | None, name: str) -> str:
    found: MetricOut | None = (
        next((each for each in measured.metrics if each.name == name), None) if measured else None
    )
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return words.value(found.value)
    return _("{value} ({low} to {high})").format(
        value=words.value(found.value), low=words.value(found.low), high=words.value(found.high)
    )


def _gate(report: ReportOut, name: str) -> str:
    gate = report.gate
    if gate is None or gate.metric != name or gate.limit is None:
        return ""
    if gate.higher_is_better:
        text = _("gate passed: at least {limit}") if gate.passed else _("gate failed: at least {limit}")
    else:
        text = _("gate passed: at most {limit}") if gate.passed else _("gate failed: at most {limit}")
    return text.format(limit=words.value(gate.limit))


def _text(value: object) -> str:
    if isinstance(value, list):
        return f" {_('and')} ".join(map(str, value))
    return words.value(value) if isinstance(value, float) else str(value)
