"""The schema and its page."""

import re
from collections import Counter
from pathlib import Path

import jsonschema_rs
import pytest
from django.test import Client
from pydantic import BaseModel

from berth import client
from orchestrator.api.http import field_words

from .test_access import every_route

# The routes of design/api.md that exist so far.
CONTRACT = {
    "post /jobs", "get /jobs", "get /jobs/{job_id}", "patch /jobs/{job_id}", "post /jobs/{job_id}/cancel",
    "post /jobs/{job_id}/hold", "post /jobs/{job_id}/release", "post /jobs/{job_id}/preempt",
    "post /jobs/{job_id}/checkpoint", "post /jobs/{job_id}/retry", "get /jobs/{job_id}/explain",
    "get /jobs/{job_id}/events", "get /jobs/{job_id}/attempts", "get /jobs/{job_id}/logs",
    "get /jobs/{job_id}/metrics", "get /jobs/{job_id}/checkpoints", "get /jobs/{job_id}/checkpoints/{step}",
    "delete /jobs/{job_id}/checkpoints/{step}", "get /jobs/{job_id}/files", "get /jobs/{job_id}/files/{path}",
    "get /pools", "post /pools", "patch /pools/{pool_id}", "get /devices", "patch /devices/{device_id}",
    "get /devices/{device_id}/history", "get /datasets", "post /datasets", "get /datasets/{name}",
    "get /tokens", "post /tokens", "delete /tokens/{token_id}", "get /health/live", "get /health/ready",
}  # fmt: skip


REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
BESIDE_REST = {
    ("get", "/poll"),
    ("get", "/metrics"),
}  # the one waits outside Django, the other is of the root
OF_THE_SCHEMA = {"/openapi.json", "/docs"}


def rows_of_reference() -> list[tuple[str, set[tuple[str, str]]]]:
    """Each row of the reference's table of routes, with the (method, path) in its first cell; {} for what varies.

    In a row "..." stands for its first path, and a path without a method for the first one with another last part.
    """
    rows = []
    for line in REFERENCE.read_text().splitlines():
        if not re.match(r"\| `(GET|POST|PATCH)", line):
            continue
        found, first, methods = set(), "", ""
        for named, text in re.findall(r"`(?:([A-Z/]+) )?([./][\w{}./-]*)", line.split(" | ")[0]):
            methods = named or methods
            path = re.sub(r"\{\w+\}", "{}", text.replace("...", first))
            path = path if named else f"{first.rpartition('/')[0]}{path}"
            first = first or path
            found |= {(each.lower(), path) for each in methods.split("/")}
        rows.append((line, {route for route in found if route[1] not in OF_THE_SCHEMA}))
    return rows


@pytest.fixture
def schema(client_of, ada):
    return client_of(ada, "read").send("GET", "/openapi.json").json()


def test_the_contract_is_served():
    assert {f"{method} {path}" for method, path in every_route()} >= CONTRACT


def test_the_reference_has_every_route_and_marks_those_that_are_not_there():
    served = {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in every_route()} | BESIDE_REST
    rows = rows_of_reference()

    promised = {route for line, routes in rows if "| *not yet*: " in line for route in routes}
    assert {route for _, routes in rows for route in routes} - promised == served
    assert promised & served == set()


def test_the_reference_and_the_client_name_every_field_of_a_job_to_submit(schema):
    fields = set(schema["components"]["schemas"]["JobSpec"]["properties"])
    page = REFERENCE.read_text()

    assert {name for name in fields if not re.search(rf"[`\"]{name}[`\"]", page)} == set()
    assert set(client.Spec.__annotations__) == fields


@pytest.mark.parametrize(
    ("answer", "record"),
    [
        ("JobOut", client.Job),
        ("AttemptOut", client.Attempt),
        ("ProgressOut", client.Progress),
        ("ExplainOut", client.Explanation),
        ("PlanOut", client.Plan),
        ("EventOut", client.Event),
        ("CheckpointOut", client.Checkpoint),
        ("FileOut", client.OutputFile),
        ("SeriesOut", client.Series),
        ("DeviceOut", client.Device),
        ("ReadingOut", client.Reading),
        ("HolderOut", client.Holder),
        ("ProcessOut", client.Process),
        ("PoolOut", client.Pool),
        ("ReservationOut", client.Booking),
        ("UsageOut", client.Usage),
        ("UsageRowOut", client.UsageRow),
        ("DatasetOut", client.Dataset),
        ("PersonOut", client.Person),
    ],
)
def test_the_client_promises_no_field_that_is_not_answered(schema, answer, record):
    promised = {name for name in record.__annotations__ if not name.startswith("_")}

    assert promised - set(schema["components"]["schemas"][answer]["properties"]) == set()


def test_the_schema_is_openapi_3_1_without_dangling_references(schema):
    assert schema["openapi"].startswith("3.1")
    wanted = set(re.findall(r"#/components/schemas/([\w.-]+)", str(schema)))
    assert wanted <= set(schema["components"]["schemas"])


def undescribed(document):
    schemas = document["components"]["schemas"]
    fields = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, described in schema.get("properties", {}).items()
        if not described.get("description")
    ]
    parameters = [
        f"{operation['operationId']}({parameter['name']})"
        for methods in document["paths"].values()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    return fields + parameters


def every_model(of: type[BaseModel] = BaseModel) -> set[type[BaseModel]]:
    """The models of requests and answers that Berth declares, once every route has loaded its own."""
    below = of.__subclasses__()
    found = {model for model in below if model.__module__.startswith("orchestrator.")}
    return found.union(*map(every_model, below))


def test_no_two_models_share_a_name_in_the_schema(schema):
    """The schema has one place for a name: of two models with that name it would describe one for both."""
    described = schema["components"]["schemas"]
    names = Counter(model.__name__ for model in every_model())

    assert [name for name, count in names.items() if count > 1 and name in described] == []


def test_every_field_and_every_parameter_is_described(schema):
    assert undescribed(schema) == []


def test_no_word_about_a_field_is_of_a_schema_or_field_that_is_gone(schema):
    schemas = schema["components"]["schemas"]

    gone = [
        f"{name}.{field}"
        for name, words in field_words.IN_ONE.items()
        for field in words
        if field not in schemas.get(name, {}).get("properties", {})
    ]
    named = {field for each in schemas.values() for field in each.get("properties", {})}
    assert gone == []
    assert set(field_words.EVERYWHERE) - named == set()


def test_every_json_body_has_an_example_that_its_schema_allows(schema):
    bodies = {
        operation["operationId"]: content["application/json"]
        for methods in schema["paths"].values()
        for operation in methods.values()
        if "application/json" in (content := operation.get("requestBody", {}).get("content", {}))
    }

    assert len(bodies) > 10
    assert [name for name, body in bodies.items() if "example" not in body] == []
    for body in bodies.values():
        whole = {**body["schema"], "components": schema["components"]}
        jsonschema_rs.validator_for(whole).validate(body["example"])


def test_every_example_of_a_field_is_allowed_by_the_field(schema):
    wrong = []
    for name, each in schema["components"]["schemas"].items():
        for field, described in each.get("properties", {}).items():
            validator = jsonschema_rs.validator_for({**described, "components": schema["components"]})
            wrong += [
                f"{name}.{field}" for one in described.get("examples", ()) if not validator.is_valid(one)
            ]
    assert wrong == []


def test_every_route_behind_the_gate_names_both_schemes_of_the_header(schema):
    assert schema["components"]["securitySchemes"]["Bearer"] == {"type": "http", "scheme": "bearer"}
    for path, methods in schema["paths"].items():
        wanted = {"SiteGate"} if path.startswith("/api/v1/rounds") else {"TokenOrSession", "Bearer"}
        for operation in methods.values():
            if schemes := operation.get("security"):
                assert {name for each in schemes for name in each} == wanted


def test_what_is_served_beside_rest_is_described_too(schema):
    beside = {"/api/v1/poll", "/api/v1/openapi.json", "/api/v1/docs", "/metrics"}

    assert beside <= set(schema["paths"])
    jobs = schema["paths"]["/api/v1/jobs"]["get"]
    assert schema["paths"]["/api/v1/poll"]["get"]["security"] == jobs["security"]
    assert schema["paths"]["/api/v1/docs"]["get"]["security"] == jobs["security"]


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_t01_the_schema_and_its_page_are_for_who_is_signed_in(path, anonymous, client_of, ada):
    asked = anonymous.send("GET", path)
    browsed = anonymous.send("GET", path, Accept="text/html")
    wrong = anonymous.send("GET", path, Accept="text/html", Authorization="Token berth_none")

    assert (asked.status_code, asked["WWW-Authenticate"]) == (401, "Token")
    assert (browsed.status_code, browsed["Location"]) == (302, f"/login?next=/api/v1{path}")
    assert wrong.status_code == 401
    assert client_of(ada, "read").send("GET", path).status_code == 200
    signed_in = Client()
    signed_in.force_login(ada)
    assert signed_in.get(f"/api/v1{path}").status_code == 200


def test_a_submit_is_described_for_json_and_forms(schema):
    body = schema["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]

    assert set(body) == {"application/json", "multipart/form-data"}
    assert "gpus" in schema["components"]["schemas"]["JobSpec"]["properties"]


def test_the_page_runs_nothing_inline_and_loads_nothing_from_outside(client_of, ada):
    page = client_of(ada).send("GET", "/docs")

    html = page.content.decode()
    inline = re.findall(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)", html)
    outside = re.findall(r"""(?:src|href)=["'](?:https?:)?//""", html)
    assert (page.status_code, inline, outside) == (200, [], [])
    assert "script-src 'self'" in page["Content-Security-Policy"]
