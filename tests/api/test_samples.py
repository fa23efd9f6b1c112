"""The ways to ask that the page of the schema shows: each could be typed as it stands."""

import ast
import json
import re
import shlex
from typing import Any

import httpx
import pytest
import typer

from berth.cli.app import app
from berth.client import Berth, Federation, Job, Service, Sweep
from orchestrator.api import api
from orchestrator.api.http.samples import ADDRESS, SAMPLES

SCHEMA: dict[str, Any] = api.get_openapi_schema(path_prefix="/api/v1/")
OPERATIONS = {
    operation["operationId"]: (address, method, operation)
    for address, methods in SCHEMA["paths"].items()
    for method, operation in methods.items()
}


def block(operation: str, label: str) -> str | None:
    description = OPERATIONS[operation][2]["description"]
    found = re.search(rf"\*\*{label}\*\*\n```\w+\n(.*?)\n```", description, re.DOTALL)
    return found and found[1]


def test_every_sample_is_of_an_operation() -> None:
    assert set(SAMPLES) <= set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_curl_asks_for_the_very_operation_with_fields_that_it_knows(operation: str) -> None:
    address, method, described = OPERATIONS[operation]
    words = shlex.split(block(operation, "curl") or "")
    asked = httpx.URL(words[-1])
    assert re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(address)), asked.path)
    assert (words[words.index("-X") + 1] if "-X" in words else "GET") == method.upper()
    known = {each["name"] for each in described.get("parameters", ()) if each["in"] == "query"}
    assert set(asked.params) <= known
    asked_for = {each["name"] for each in described.get("parameters", ()) if each.get("required")}
    assert asked_for <= {*asked.params, *re.findall(r"{(\w+)}", address)}
    content = described.get("requestBody", {}).get("content", {}).get("application/json")
    assert ("-d" in words) == (content is not None)
    if content is not None:
        body = content["schema"]
        if "$ref" in body:
            body = SCHEMA["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        given = json.loads(words[words.index("-d") + 1])
        assert set(body.get("required", ())) <= set(given) <= set(body["properties"]) | {"resume"}


@pytest.mark.parametrize("operation", [name for name, each in SAMPLES.items() if each.command])
def test_the_command_line_reads_the_command(operation: str) -> None:
    program, *words = shlex.split(SAMPLES[operation].command or "")
    assert program == "berth"
    words = words[: words.index("--")] if "--" in words else words  # the rest is the script's
    command: Any = typer.main.get_command(app)
    context = command.make_context("berth", words, resilient_parsing=False)
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, words, parent=context)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if block(name, "Python")])
def test_the_client_has_what_python_calls(operation: str) -> None:
    *_, last = ast.parse(block(operation, "Python") or "").body
    calls = [node for node in ast.walk(last) if isinstance(node, ast.Call)]
    for call in calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        owner = call.func.value
        if isinstance(owner, ast.Name):
            held: type = Berth
        else:
            named = ast.unparse(owner)
            kinds = {"sweep": Sweep, "service": Service, "federation": Federation}
            held = next((kind for word, kind in kinds.items() if word in named), Job)
        assert callable(getattr(held, call.func.attr))


def test_the_reader_sees_the_address_they_came_by(client_of, ada) -> None:
    schema = client_of(ada).send("GET", "/openapi.json").text
    assert ADDRESS not in schema
    assert "http://testserver/api/v1/jobs" in schema
