"""The REST API (django-ninja): resources/ has its routes, http/ what they share; the contract is docs/reference/api.md."""

from django.http import Http404
from ninja.errors import HttpError, ValidationError

from orchestrator.api.http.authentication import SIGNED_IN
from orchestrator.api.http.errors import answer_error
from orchestrator.api.http.reading import StrictParser
from orchestrator.api.http.routing import BerthAPI, only_known_parameters
from orchestrator.api.http.samples import show_schema
from orchestrator.api.http.writing import JsonRenderer
from orchestrator.api.resources import (
    audit,
    capacity,
    datasets,
    devices,
    environments,
    federated_sites,
    federations,
    jobs,
    kept_files,
    lending,
    links,
    logs,
    media,
    models,
    new_people,
    notes,
    notifications,
    outputs,
    people,
    plan,
    pools,
    projects,
    quotas,
    recipes,
    reservations,
    search,
    secrets,
    server_parts,
    services,
    sessions,
    sweeps,
    timeline,
    tokens,
    uploads,
    usage,
)
from orchestrator.api.resources.schemas import JobChanges
from orchestrator.federations.asking import FederationSpec
from orchestrator.federations.joining import JoinSpec
from orchestrator.services.asking import ServiceChanges, ServiceSpec
from orchestrator.spec.job_spec import JobSpec
from orchestrator.sweeps.asking import SweepChanges, SweepSpec

api = BerthAPI(
    title="Berth",
    version="1",
    description="Submit, watch and steer training jobs. Errors are application/problem+json (RFC 9457).",
    urls_namespace="api",
    auth=SIGNED_IN,  # for every route except health, which sets its own; the schema's views are not routes
    parser=StrictParser(),
    renderer=JsonRenderer(),
    docs_decorator=show_schema,
    bodies=(
        JobSpec,
        JobChanges,
        SweepSpec,
        SweepChanges,
        ServiceSpec,
        ServiceChanges,
        FederationSpec,
        JoinSpec,
    ),
)
for _kind in (Exception, HttpError, ValidationError, Http404):  # ninja would answer these itself
    api.add_exception_handler(_kind, answer_error)
api.add_decorator(only_known_parameters)
for _prefix, _router in (
    ("/jobs", jobs.router),
    ("/jobs", logs.router),
    ("/jobs", outputs.router),
    ("/jobs", media.router),
    ("/jobs", environments.router),
    ("/jobs", notes.jobs_router),
    ("/projects", projects.router),
    ("/projects", notes.projects_router),
    ("/notes", notes.router),
    ("/links", links.router),
    ("/environments", kept_files.router),
    ("/devices", devices.router),
    ("/capacity", capacity.router),
    ("/pools", pools.router),
    ("/pools", lending.router),
    ("/pools", people.rights_router),
    ("/people", new_people.router),
    ("/invitations", people.invitations_router),
    ("/quotas", quotas.router),
    ("/reservations", reservations.router),
    ("/audit", audit.router),
    ("/datasets", datasets.router),
    ("/models", recipes.router),  # first: a path of models takes all that follows
    ("/models", models.router),
    ("/uploads", uploads.router),
    ("/tokens", tokens.router),
    ("/secrets", secrets.router),
    ("/notifications", notifications.router),
    ("/me", people.me_router),
    ("/search", search.router),
    ("/plan", plan.router),
    ("/sweeps", sweeps.router),
    ("/sessions", sessions.router),
    ("/services", services.router),
    ("/federated", federations.router),
    ("/rounds", federated_sites.router),
    ("/timeline", timeline.router),
    ("/usage", usage.router),
    ("/health", server_parts.router),
):
    api.add_router(_prefix, _router, tags=[_prefix[1:]])
