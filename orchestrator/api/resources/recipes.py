"""Recipes of models: jobs that measure, shrink, export or explain a model, with their reports."""

from datetime import datetime

from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.resources.services import ServiceOut, show_service
from orchestrator.jobs import promotion
from orchestrator.models import ModelRecipe
from orchestrator.people import audit
from orchestrator.recipes import creation, listing
from orchestrator.recipes.asking import RecipeSpec, ServeSpec
from orchestrator.recipes.report import ReportOut
from orchestrator.services import listing as listing_of_services
from orchestrator.services import model_service

router = Router()


class RecipeIn(RecipeSpec):
    """What to do with a model; its job's own code builds it and gives the evaluation data."""


class ServeIn(ServeSpec):
    """A service of a model; its other rules can be changed later, like any service's."""


class RecipeOut(BaseModel):
    """A recipe of a model, its job and what came of it."""

    recipe: str = Field(description="evaluate, export, quantize, prune, distil, average, ensemble or explain")
    source: str = Field(description="reference of the model it was made from, which may be gone")
    job: str | None = Field(description="id of its job; null: the job is gone")
    state: str | None = Field(description="of the job")
    result: str | None = Field(description="reference of the model that came of it")
    outcome: str | None = Field(
        description="made, measured, gate_failed, not_kept or job_ended; null: not yet"
    )
    detail: str = Field(description="the outcome as a sentence")
    report: ReportOut | None = Field(description="null: not yet, or the job left none")
    created_at: datetime = Field(description="when its job was submitted")
    ended_at: datetime | None = Field(description="null: its job has not ended")


@router.post("/{path:name}/recipes", response={201: RecipeOut})
def run_recipe(request: ApiRequest, name: str, body: RecipeIn) -> RecipeOut:
    """Submit the job of a recipe; the model's job has to be there, because its code builds the model.

    A result that passes its accuracy gate becomes a model; one that fails stays a checkpoint of the recipe's job.
    """
    model = promotion.find(name, request.user)
    recipe = creation.create(request.user, model, body)
    if model.dataset.owner_id != request.user.pk:
        text = f"Ran the recipe {recipe}."
        audit.record(request.user, "model.recipe", f"model {model}", text, address=audit.address_of(request))
    return show_recipe(recipe)


@router.get("/{path:name}/recipes", response=Page[RecipeOut])
def list_recipes(request: ApiRequest, name: str, asked: Query[Paging]) -> Page[RecipeOut]:
    """The recipes of a model and the one that made it, newest first, each with its report."""
    model = promotion.find(name, request.user)
    return page(Page[RecipeOut], request, listing.of_model(model), asked, show=show_recipe)


@router.post("/{path:name}/service", response={201: ServiceOut})
def serve_model(request: ApiRequest, name: str, body: ServeIn) -> ServiceOut:
    """Begin a service that answers with the model; the code of the model's job builds it.

    It answers POST requests with JSON: a batch of inputs as a list, or {"inputs": [...]}.
    """
    model = promotion.find(name, request.user)
    service = model_service.serve(request.user, model, body)
    if model.dataset.owner_id != request.user.pk:
        text = f"Began the service {service} with it."
        audit.record(request.user, "model.serve", f"model {model}", text, address=audit.address_of(request))
    return show_service(listing_of_services.row_of(service), request)


def show_recipe(recipe: ModelRecipe) -> RecipeOut:
    report = listing.report_of(recipe)
    return RecipeOut(
        recipe=recipe.kind,
        source=recipe.source_reference,
        job=None if recipe.job is None else str(recipe.job.pk),
        state=None if recipe.job is None else recipe.job.state,
        result=None if recipe.result is None else recipe.result.dataset.reference,
        outcome=recipe.outcome or None,
        detail=listing.say(recipe, report),
        report=report,
        created_at=recipe.created_at,
        ended_at=recipe.ended_at,
    )
