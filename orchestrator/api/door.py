"""The API object: what every route has in common."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_args
from urllib.parse import unquote

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponseBase, HttpResponseNotAllowed
from django.urls import URLPattern, URLResolver, re_path
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.errors import ValidationError, ValidationErrorContext
from ninja.openapi.schema import REF_TEMPLATE, OpenAPISchema
from ninja.operation import Operation
from ninja.params.models import ParamModel
from pydantic import BaseModel

from orchestrator.api.beside import describe_beside
from orchestrator.api.errors import WrongMethod, answer_error, problem
from orchestrator.api.samples import add_samples
from orchestrator.api.schemas import JobChanges, Problem
from orchestrator.exceptions import Malformed
from orchestrator.spec.job_spec import JobSpec

View = Callable[..., Any]
PROBLEM_RESPONSE = {
    "description": "What went wrong (RFC 9457)",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


class BerthAPI(NinjaAPI):
    """ninja's API with our errors on every path, and HEAD wherever there is GET."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._schemas: dict[str, OpenAPISchema] = {}

    @property
    def urls(self) -> tuple[list[URLResolver | URLPattern], str, str]:
        patterns, app, namespace = super().urls
        opened = [
            URLPattern(each.pattern, _open(each.callback), each.default_args, each.name)
            for each in patterns
            if isinstance(each, URLPattern)
        ]
        return [*opened, re_path("", _open(_nothing_here))], app, namespace

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        """ninja's schema, with the bodies that we read ourselves, the form of every error and samples; made once."""
        if path_prefix is None:
            path_prefix = self.get_root_path(path_params or {})
        if path_prefix not in self._schemas:
            self._schemas[path_prefix] = self._make_schema(path_prefix)
        return self._schemas[path_prefix]

    def _make_schema(self, path_prefix: str) -> OpenAPISchema:
        schema = super().get_openapi_schema(path_prefix=path_prefix)
        for model in (JobSpec, JobChanges, Problem):
            described = model.model_json_schema(ref_template=REF_TEMPLATE)
            schema["components"]["schemas"].update(described.pop("$defs", {}))
            schema["components"]["schemas"][model.__name__] = described
        schema["paths"].update(describe_beside(path_prefix))
        for address, methods in schema["paths"].items():
            for method, operation in methods.items():
                operation["responses"]["default"] = PROBLEM_RESPONSE
                add_samples(address, method, operation)
        return schema

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """The function's name, which clients made from the schema use as theirs."""
        return operation.view_func.__name__

    def validation_error_from_error_contexts(
        self, error_contexts: list[ValidationErrorContext[Any]]
    ) -> ValidationError:
        """Name the accepted fields where one is unknown (B37)."""
        error = super().validation_error_from_error_contexts(error_contexts)
        for entry in error.errors:
            if entry["type"] == "extra_forbidden":
                accepted = _accepted(error_contexts, entry["loc"])
                entry["msg"] = f"unknown field; accepted are {', '.join(accepted)}"
        # The name of our own body parameter means nothing to the caller.
        for entry in error.errors:
            if entry["loc"][0] == "body" and len(entry["loc"]) > 2:
                entry["loc"] = (entry["loc"][0], *entry["loc"][2:])
        return error


def only_known_parameters(view: View) -> View:
    """Refuse query parameters that the route does not have: a misspelt filter must not list everything (B43)."""
    known = _query_names(view)

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if unknown := sorted(set(request.GET) - known):
            accepted = f"accepted are {', '.join(sorted(known))}" if known else "this address takes none"
            raise Malformed(
                f"There is no parameter {unknown[0][:60]!r} here; {accepted}.",
                fields={name[:60]: [f"unknown parameter; {accepted}"] for name in unknown},
            )
        return view(request, *args, **kwargs)

    return checked


def _query_names(view: View) -> set[str]:
    """Names of the fields of a view's ``Query[...]`` models; routes take query parameters in no other way."""
    names = set()
    for parameter in inspect.signature(view).parameters.values():
        for part in get_args(parameter.annotation)[:1]:
            if inspect.isclass(part) and issubclass(part, BaseModel):
                names |= {field.alias or name for name, field in part.model_fields.items()}
    return names


def _accepted(contexts: list[ValidationErrorContext[Any]], location: tuple[Any, ...]) -> list[str]:
    for context in contexts:
        model: Any = context.model
        if isinstance(model, type) and issubclass(model, ParamModel):
            for part in location[1:-1]:
                field = model.model_fields.get(part)
                model = field.annotation if field else None
                if not (inspect.isclass(model) and issubclass(model, BaseModel)):
                    break
            else:
                return list(model.model_fields)
    return []


def _open(view: View) -> View:
    """A route as Django sees it: the gate, not the session middlewares, says who may call it."""

    @wraps(view, updated=())
    def door(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method == "HEAD":
            request.method = "GET"  # the server leaves the body out
        try:
            _refuse_nul(request)
            response: HttpResponseBase = view(request, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the last stop: everything becomes an answer here
            return answer_error(request, error)
        if isinstance(response, HttpResponseNotAllowed):
            allowed = response.headers["Allow"]
            return problem(WrongMethod(f"This address answers to {allowed}."), {"Allow": allowed})
        return response

    return csrf_exempt(login_not_required(door))


def _refuse_nul(request: HttpRequest) -> None:
    """As the bodies' door does (``plain_text``): nothing of ours is named with one."""
    if "\0" in request.path or "\0" in unquote(request.META["QUERY_STRING"]):
        raise Malformed("The address has a NUL character; leave it out.")


def _nothing_here(request: HttpRequest) -> HttpResponseBase:
    raise Http404
