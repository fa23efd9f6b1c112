"""REST's door (django-ninja): one file for each resource, the contract in docs/reference/api.md."""

from django.http import Http404
from ninja.errors import HttpError, ValidationError

from orchestrator.api import (
    audit,
    datasets,
    devices,
    health,
    job_output,
    jobs,
    me,
    merged_log,
    notifications,
    people,
    plan,
    pools,
    quotas,
    reservations,
    search,
    secrets,
    timeline,
    tokens,
    usage,
)
from orchestrator.api.auth import SIGNED_IN
from orchestrator.api.door import BerthAPI, only_known_parameters
from orchestrator.api.errors import answer_error
from orchestrator.api.reading import StrictParser
from orchestrator.api.rendering import JsonRenderer
from orchestrator.api.samples import show_schema

api = BerthAPI(
    title="Berth",
    version="1",
    description="Submit, watch and steer training jobs. Errors are application/problem+json (RFC 9457).",
    urls_namespace="api",
    auth=SIGNED_IN,  # every route; those of health say otherwise themselves, the schema's are not routes
    parser=StrictParser(),
    renderer=JsonRenderer(),
    docs_decorator=show_schema,
)
for _kind in (Exception, HttpError, ValidationError, Http404):  # ninja brings own answers to these
    api.add_exception_handler(_kind, answer_error)
api.add_decorator(only_known_parameters)
for _prefix, _router in (
    ("/jobs", jobs.router),
    ("/jobs", job_output.router),
    ("/jobs", merged_log.router),
    ("/devices", devices.router),
    ("/pools", pools.router),
    ("/pools", people.rights_router),
    ("/people", people.router),
    ("/quotas", quotas.router),
    ("/reservations", reservations.router),
    ("/audit", audit.router),
    ("/datasets", datasets.router),
    ("/tokens", tokens.router),
    ("/secrets", secrets.router),
    ("/notifications", notifications.router),
    ("/me", me.router),
    ("/search", search.router),
    ("/plan", plan.router),
    ("/timeline", timeline.router),
    ("/usage", usage.router),
    ("/health", health.router),
):
    api.add_router(_prefix, _router, tags=[_prefix[1:]])
