"""The schema and its page."""

import re
from pathlib import Path

import pytest

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


def rows_of_reference() -> list[tuple[str, list[tuple[str, str]]]]:
    """Each row of the reference's table of routes, with the (method, path) in it; {} for what varies."""
    rows = []
    for line in REFERENCE.read_text().splitlines():
        if not re.match(r"\| `(GET|POST|PATCH)", line):
            continue
        found = []
        for methods, path in re.findall(r"`([A-Z]+(?:/[A-Z]+)*) (/[\w{}./]+)", line):
            found += [(each.lower(), re.sub(r"\{\w+\}", "{}", path)) for each in methods.split("/")]
        rows.append((line, [route for route in found if route[1] not in OF_THE_SCHEMA]))
    return rows


@pytest.fixture
def schema(anonymous):
    return anonymous.send("GET", "/openapi.json").json()


def test_the_contract_is_served():
    assert {f"{method} {path}" for method, path in every_route()} >= CONTRACT


def test_the_reference_marks_the_routes_that_are_not_there():
    served = {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in every_route()}
    rows = rows_of_reference()

    assert len(rows) > 25
    for line, routes in rows:
        for method, path in routes:
            if (method, path) in BESIDE_REST:
                continue
            # DELETE /tokens takes an id.
            is_there = (method, path) in served or (method, f"{path}/{{}}") in served
            assert is_there != ("| *not yet*: " in line), (method, path)


def test_the_schema_is_public_openapi_3_1_without_dangling_references(schema):
    assert schema["openapi"].startswith("3.1")
    wanted = set(re.findall(r"#/components/schemas/([\w.-]+)", str(schema)))
    assert wanted <= set(schema["components"]["schemas"])


def test_what_is_served_beside_rest_is_described_too(schema):
    beside = {"/api/v1/poll", "/api/v1/openapi.json", "/api/v1/docs", "/metrics"}

    assert beside <= set(schema["paths"])
    jobs = schema["paths"]["/api/v1/jobs"]["get"]
    assert schema["paths"]["/api/v1/poll"]["get"]["security"] == jobs["security"]
    assert "security" not in schema["paths"]["/api/v1/docs"]["get"]


def test_a_submit_is_described_for_json_and_forms(schema):
    body = schema["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]

    assert set(body) == {"application/json", "multipart/form-data"}
    assert "gpus" in schema["components"]["schemas"]["JobSpec"]["properties"]


def test_the_page_runs_nothing_inline_and_loads_nothing_from_outside(anonymous):
    page = anonymous.send("GET", "/docs")

    html = page.content.decode()
    inline = re.findall(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)", html)
    outside = re.findall(r"""(?:src|href)=["'](?:https?:)?//""", html)
    assert (page.status_code, inline, outside) == (200, [], [])
    assert "script-src 'self'" in page["Content-Security-Policy"]
