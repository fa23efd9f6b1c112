"""What agents do through the tools: over REST, at /mcp and over `berth mcp`, against a real server."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from berth.agents.looking import MOST_POINTS, ToolError, _points
from berth.agents.skill import skill_text
from berth.agents.tools import TOOLS
from berth.cli.agent_commands import rest_of
from berth.client import Berth
from orchestrator.api.http.agents_door import AgentsDoor
from tests.berth.conftest import BERTH, Web, environment_for
from tests.conftest import lacking
from tests.system.server import REPOSITORY

VERSION = "2026-07-28"
MOST_TOKENS = 2000
SCRIPT = {"text": "print('step 1 loss 0.5')\n"}
JOB = {"source": SCRIPT, "time_limit_s": 600, "name": "by-agent"}


def size_in_tokens(tools: Any) -> int:
    """More than common tokenisers count: JSON of schemas has about four characters a token."""
    return round(len(json.dumps(tools, separators=(",", ":"))) / 3.5)


def message(method: str, **params: Any) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


@pytest.fixture
def post(web: Web) -> Callable[..., httpx.Response]:
    """Send one message to /mcp as ada; ``token`` is another's, None for no header."""

    def send(method: str, token: str | None = web.tokens["ada"], **params: Any) -> httpx.Response:
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
            **({"Mcp-Name": params["name"]} if "name" in params else {}),
            **({} if token is None else {"Authorization": f"Bearer {token}"}),
        }
        return httpx.post(f"{web.url}/mcp", json=message(method, **params), headers=headers, timeout=60)

    return send


@pytest.fixture
def needs_sdk() -> None:
    if find_spec("mcp") is None:
        lacking("the extra mcp")


@pytest.fixture
def call(berth: Berth) -> Callable[..., dict[str, Any]]:
    """Call a tool over REST, as ada."""

    def carry_out(name: str, **given: Any) -> dict[str, Any]:
        TOOLS[name].check(given)
        return TOOLS[name].act(rest_of(berth), given)

    return carry_out


def test_tools_are_split_in_read_preview_and_change_with_hints():
    kinds = {
        kind: {tool.name for tool in TOOLS.values() if tool.kind == kind}
        for kind in ("read", "preview", "change")
    }

    assert kinds["preview"] == {"plan", "preview_stop"}
    assert kinds["change"] == {"submit", "stop", "move"}
    assert {tool.name for tool in TOOLS.values() if tool.hints.get("readOnlyHint")} == kinds["read"] | kinds[
        "preview"
    ]
    assert {tool.name for tool in TOOLS.values() if tool.hints.get("destructiveHint")} == {"stop"}


def test_skill_names_every_tool():
    assert skill_text().startswith("---\nname: berth\ndescription: ")
    assert [name for name in TOOLS if f"- `{name}`: " not in skill_text()] == []


def test_points_are_at_most_200_and_keep_spikes():
    buckets = MOST_POINTS // 2
    lows = [1.0] * buckets
    series = {"x": list(range(buckets)), "y_min": lows, "y_max": [*lows[:-1], 1e9]}

    assert _points(series)[-2:] == [[buckets - 1, 1.0], [buckets - 1, 1e9]]
    assert len(_points({**series, "y_max": [2.0] * buckets})) == MOST_POINTS


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("job", {}, "job needs job."),
        ("job", {"id": "x", "job": "x"}, "job has no 'id'; it takes job."),
        ("log", {"job": 3}, "job of log is a JSON string."),
        ("log", {"job": "x", "lines": True}, "lines of log is a JSON integer."),
        ("compare", {"jobs": [1, 2]}, "jobs of compare is a list of texts."),
        ("server", {"x": 1}, "server has no 'x'; it takes nothing."),
    ],
)
def test_call_with_wrong_arguments_says_what_the_tool_takes(name, given, said):
    with pytest.raises(ToolError) as refused:
        TOOLS[name].check(given)
    assert str(refused.value) == said


async def test_without_the_sdk_the_door_says_so_and_the_rest_is_served():
    async def behind(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    door: Any = AgentsDoor(behind, sdk="an_sdk_that_is_not_there")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="http://localhost") as client:
        told = await client.post("/mcp", json={})
        other = await client.get("/mcpx")

    assert (told.status_code, told.json()["code"], other.status_code) == (501, "not_installed", 204)
    assert "installs the extra mcp" in told.json()["detail"]


@pytest.mark.slow
def test_neither_the_server_nor_the_command_loads_the_sdk_before_an_agent_comes(plain, tmp_path):
    code = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import orchestrator.server.asgi, orchestrator.server.urls, berth.cli.app
print([name for name in sys.modules if name.partition(".")[0] in {"mcp", "mcp_types", "starlette"}])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_each_reading_tool_answers_with_the_fields_of_its_schema(call, web):
    failed = web.jobs["failed"]  # other tests run it again under its name
    given: dict[str, dict[str, Any]] = {
        "compare": {"jobs": ["tiny-gpt", failed]},
        **{name: {"job": "tiny-gpt"} for name in ("job", "log", "metrics", "triage", "wait", "preview_stop")},
        "plan": {"job": {"gpus": 1}},
    }
    for tool in TOOLS.values():
        if tool.kind != "change":
            assert set(tool.answers) <= set(call(tool.name, **given.get(tool.name, {}))), tool.name
    assert call("job", job="tiny-gpt")["last_values"] == {"loss": 2.31, "lr": 1e-4}
    assert call("log", job="tiny-gpt", lines=2)["text"] == "line 39999\nline 40000"
    assert call("log", job="tiny-gpt", find="line 777")["total"] == 11
    assert call("compare", jobs=["tiny-gpt", failed])["differs"]["--lr"] == ["3e-4", "1e-3"]
    assert "KeyError" in call("triage", job=failed)["log"]
    assert call("wait", job=failed)["done"]
    with pytest.raises(ToolError, match="There is no job 'nothing'"):
        call("job", job="nothing")


@pytest.mark.slow
def test_stop_needs_the_code_of_a_preview_of_the_job_as_it_is(call):
    job = call("submit", job=JOB)
    like = call("submit", like=job["id"], job={"args": ["--lr", "1"]})
    with pytest.raises(ToolError, match="Call preview_stop"):
        call("stop", job=job["id"], confirm="12345678")
    with pytest.raises(ToolError, match="Call preview_stop"):
        call("stop", job=job["id"], confirm=call("preview_stop", job=like["id"])["confirm"])

    call("move", job=like["id"], before=job["id"])
    for one in (job, like):
        seen = call("preview_stop", job=one["id"])
        assert "Would cancel by-agent of ada" in seen["sentence"]
        assert call("stop", job=one["id"], confirm=seen["confirm"])["state"] == "cancelled"
    assert call("job", job=like["id"])["settings"]["args"] == ["--lr", "1"]


@pytest.mark.slow
def test_submit_with_a_key_is_done_once(call):
    first, second = (call("submit", job=JOB, key="once")["id"] for _ in range(2))

    assert first == second
    call("stop", job=first, confirm=call("preview_stop", job=first)["confirm"])


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sdk")
def test_door_lists_all_tools_in_less_than_two_thousand_tokens(post):
    tools = post("tools/list").json()["result"]["tools"]

    assert [tool["name"] for tool in tools] == list(TOOLS)
    assert all(tool["outputSchema"]["properties"] and tool["annotations"] for tool in tools)
    assert size_in_tokens(tools) < MOST_TOKENS


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sdk")
def test_door_gives_each_token_the_rights_that_rest_gives(post, web):
    def answer(who: str, name: str, **given: Any) -> dict[str, Any]:
        result = post("tools/call", web.tokens[who], name=name, arguments=given).json()["result"]
        return {"error": result["content"][0]["text"]} if result["isError"] else result["structuredContent"]

    running = web.jobs["running"]
    assert answer("ada", "job", job=running)["name"] == "tiny-gpt"
    assert "There is no job" in answer("bob", "job", job=running)["error"]
    assert answer("root", "job", job=running)["owner"] == "ada"
    assert "scope" in answer("reader", "submit", job=JOB)["error"]
    confirm = answer("ada", "preview_stop", job=running)["confirm"]
    assert "scope" in answer("reader", "stop", job=running, confirm=confirm)["error"]
    assert "There is no job" in answer("bob", "stop", job=running, confirm=confirm)["error"]
    assert "gpus" in answer("ada", "plan", job={"gpus": -1})["error"]
    assert "There is no tool 'drain'" in answer("root", "drain")["error"]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sdk")
def test_door_is_closed_without_a_valid_token(post, web):
    for method in ("tools/list", "tools/call", "server/discover"):
        assert post(method, None).status_code == 401
        assert post(method, "berth_x_y").status_code == 401
    ada = {"Authorization": f"Bearer {web.tokens['ada']}"}
    assert httpx.post(f"{web.url}/mcp?token={web.tokens['ada']}", json={}).status_code == 400
    assert httpx.get(f"{web.url}/mcp", headers=ada).status_code == 405
    assert (
        httpx.post(f"{web.url}/mcp", headers={**ada, "Host": "elsewhere.example"}, json={}).status_code == 400
    )


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sdk")
def test_command_serves_the_same_tools_over_standard_input(web, plain, tmp_path):
    child = subprocess.Popen(
        [*BERTH, "mcp"],
        cwd=tmp_path,
        env=environment_for(web.url, web.tokens["ada"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        for request in (
            message("tools/list"),
            message("tools/call", name="job", arguments={"job": "tiny-gpt"}),
        ):
            child.stdin.write(f"{json.dumps(request)}\n")
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())["result"]
            if request["method"] == "tools/list":
                assert [tool["name"] for tool in answer["tools"]] == list(TOOLS)
            else:
                assert answer["structuredContent"]["state"] == "running"
        child.stdin.close()
        assert child.wait() == 0
