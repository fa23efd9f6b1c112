"""The API object: what all routes have in common."""

import inspect
from collections.abc import Callable, Sequence
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

from orchestrator.api.http.errors import Problem, WrongMethod, answer_error, problem
from orchestrator.api.http.field_words import describe_names
from orchestrator.api.http.samples import add_samples
from orchestrator.api.http.schema import describe_outside
from orchestrator.exceptions import Malformed, Sentence

View = Callable[..., Any]
PROBLEM_RESPONSE = {
    "description": "What went wrong (RFC 9457)",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
# Ninja knows one way to sign in; an agent's client usually sends this one.
BEARER = {"Bearer": {"type": "http", "scheme": "bearer"}}


class BerthAPI(NinjaAPI):
    """ninja's API with our errors on every path, and HEAD wherever there is a GET."""

    def __init__(self, *, bodies: Sequence[type[BaseModel]], **options: Any) -> None:
        """
        Args:
            bodies: models of request bodies that views read themselves, for the OpenAPI document.
        """
        super().__init__(**options)
        self._bodies = bodies
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
        """ninja's schema plus the bodies that views read themselves, the error format and samples; built once."""
        if path_prefix is None:
            path_prefix = self.get_root_path(path_params or {})
        if path_prefix not in self._schemas:
            self._schemas[path_prefix] = self._make_schema(path_prefix)
        return self._schemas[path_prefix]

    def _make_schema(self, path_prefix: str) -> OpenAPISchema:
        schema = super().get_openapi_schema(path_prefix=path_prefix)
        models: list[type[BaseModel]] = [*self._bodies, Problem]
        for model in models:
            described = model.model_json_schema(ref_template=REF_TEMPLATE)
            schema["components"]["schemas"].update(described.pop("$defs", {}))
            schema["components"]["schemas"][model.__name__] = described
        schema["paths"].update(describe_outside(path_prefix))
        describe_names(schema)
        schema["components"]["securitySchemes"].update(BEARER)
        for address, methods in schema["paths"].items():
            for method, operation in methods.items():
                operation["responses"]["default"] = PROBLEM_RESPONSE
                if any("TokenOrSession" in each for each in operation.get("security", ())):
                    operation["security"] = [*operation["security"], {name: [] for name in BEARER}]
                add_samples(address, method, operation)
        return schema

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """The view's name, which generated clients use as their function's name."""
        return operation.view_func.__name__

    def validation_error_from_error_contexts(
        self, error_contexts: list[ValidationErrorContext[Any]]
    ) -> ValidationError:
        """List the accepted fields where one is unknown."""
        error = super().validation_error_from_error_contexts(error_contexts)
        for entry in error.errors:
            if entry["type"] == "extra_forbidden":
                accepted = _accepted(error_contexts, entry["loc"])
                entry["msg"] = f"unknown field; accepted are {', '.join(accepted)}"
        # The name of the view's body parameter means nothing to the caller.
        for entry in error.errors:
            if entry["loc"][0] == "body" and len(entry["loc"]) > 2:
                entry["loc"] = (entry["loc"][0], *entry["loc"][2:])
        return error


def only_known_parameters(view: View) -> View:
    """Refuse unknown query parameters: a misspelt filter must not list everything."""
    parameters = _query_names(view)

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if unknown := sorted(set(request.GET) - parameters):
            accepted = (
                Sentence("accepted are {names}", names=", ".join(sorted(parameters)))
                if parameters
                else Sentence("this address accepts none")
            )
            raise Malformed(
                Sentence(
                    "There is no parameter {unknown!r} here: {accepted}.",
                    unknown=unknown[0][:60],
                    accepted=accepted,
                ),
                fields={
                    name[:60]: [Sentence("unknown parameter; {accepted}", accepted=accepted)]
                    for name in unknown
                },
            )
        return view(request, *args, **kwargs)

    return checked


def _query_names(view: View) -> set[str]:
    """Query parameters of a view, from its ``Query[...]`` models; routes declare them in no other way."""
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
    """Wrap a route for Django: the API's gate decides who may call it, not the session middleware."""

    @wraps(view, updated=())
    def door(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method == "HEAD":
            request.method = "GET"  # the server leaves the body out
        try:
            _refuse_nul(request)
            response: HttpResponseBase = view(request, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the last stop: every failure becomes an answer
            return answer_error(request, error)
        if isinstance(response, HttpResponseNotAllowed):
            allowed = response.headers["Allow"]
            return problem(WrongMethod(f"This address accepts {allowed}."), {"Allow": allowed})
        return response

    return csrf_exempt(login_not_required(door))


def _refuse_nul(request: HttpRequest) -> None:
    """Refuse addresses with a NUL, as bodies are (``plain_text``): no name contains one."""
    if "\0" in request.path or "\0" in unquote(request.META["QUERY_STRING"]):
        raise Malformed("The address contains a NUL character. Remove it.")


def _nothing_here(request: HttpRequest) -> HttpResponseBase:
    raise Http404
