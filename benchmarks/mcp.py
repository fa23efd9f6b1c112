"""The agents' door: how fast tools answer, how large their schemas are, and whether 20 scripted tasks succeed with them.

The tasks are done by a client that calls tools as an agent would, on a server of its own, with an agent's token that plans
before it submits. The client notes each call: a tool with the hint ``destructiveHint`` counts as blind unless a preview of the
same job came right before it.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from benchmarks.figures import Figure, Outcome
from benchmarks.server import Client, Server
from benchmarks.stats import percentile, spread

FIGURES = (
    Figure(
        "mcp_answer_p95_ms", "ms", "a call of a reading tool at /mcp, 3 jobs run and 20 wait, p95", target=100
    ),
    Figure("schema_tokens", "tokens", "names, descriptions, schemas and hints of all tools", target=2000),
    Figure("tasks_ok", "tasks", "of 20 scripted tasks", target=20, at_least=True),
    Figure("blind_calls", "calls", "destructive calls without a preview right before them", target=0),
)
ASKED = 100
WAITING = 20
CHARACTERS_A_TOKEN = 3.5  # of JSON schemas: common tokenisers need fewer tokens
VERSION = "2026-07-28"
RUNS = "import time\nfor step in range(100000):\n    print(f'step {step}/100000 loss {1 / (step + 1)}', flush=True)\n    time.sleep(1)\n"
ENDS = "for step in range(50):\n    print(f'step {step}/50 loss {1 / (step + 1)}', flush=True)\n"
FAILS = "print('step 1 loss 0.5', flush=True)\nraise KeyError('lr')\n"
SPIKES = (
    "for step in range(1000):\n    print(f'step {step} loss {1e6 if step == 777 else 0.5}', flush=True)\n"
)
Answer = dict[str, Any]


class Refused(Exception):
    """A tool that answered with an error; the text is its sentence."""


class Agent:
    """Calls tools over HTTP, and counts the destructive calls that no preview came before."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=120, headers={"Authorization": f"Bearer {token}"})
        self.tools: list[Answer] = self._send("tools/list")["tools"]
        self._destructive = {one["name"] for one in self.tools if one["annotations"].get("destructiveHint")}
        self._previewed = ""
        self.blind = 0

    def __call__(self, name: str, **given: Any) -> Answer:
        if name in self._destructive and self._previewed != given.get("job"):
            self.blind += 1
        self._previewed = given["job"] if name == "preview_stop" else ""
        result = self._send("tools/call", name=name, arguments=given)
        if result["isError"]:
            raise Refused(result["content"][0]["text"])
        answer: Answer = result["structuredContent"]
        return answer

    def _send(self, method: str, **params: Any) -> Answer:
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        }
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
        }
        if "name" in params:
            headers["Mcp-Name"] = params["name"]
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        answer = self._http.post("/mcp", json=body, headers=headers)
        answer.raise_for_status()
        result: Answer = answer.json()["result"]
        return result

    # What several tasks do

    def start(self, text: str, **fields: Any) -> str:
        """Plan and submit a script; returns the job's id."""
        job = {"source": {"text": text}, "time_limit_s": 600, "grace_period_s": 1, **fields}
        self("plan", job=job)
        return str(self("submit", job=job)["id"])

    def wait(self, job: str, until: str = "ended") -> Answer:
        while not (answer := self("wait", job=job, until=until))["done"]:
            pass
        return answer

    def end_of(self, job: str) -> str:
        """Wait for the end; returns the state."""
        return str(self.wait(job)["state"])

    def stop(self, job: str) -> Answer:
        return self("stop", job=job, confirm=self("preview_stop", job=job)["confirm"])

    def refused(self, name: str, said: str, **given: Any) -> bool:
        """Whether a call is refused with these words."""
        try:
            self(name, **given)
        except Refused as error:
            return said in str(error)
        return False


def measure() -> Outcome:
    outcome = Outcome()
    with Server("sim:4x80GiB") as server:
        client = server.client()
        agent = Agent(f"http://127.0.0.1:{server.port}", _agents_token(client))
        outcome.figures["schema_tokens"] = round(_length(agent.tools) / CHARACTERS_A_TOKEN)
        outcome.details["schema_characters"] = _length(agent.tools)
        done = {task.__name__: _try(task, agent) for task in TASKS}
        outcome.figures["tasks_ok"] = sum(not said for said in done.values())
        outcome.figures["blind_calls"] = agent.blind
        outcome.details["tasks"] = done
        _time_answers(agent, outcome)
    return outcome


def _agents_token(client: Client) -> str:
    agent = {"width": 3, "device_hours": 100, "plan_first": True}
    return str(client.post("/tokens", {"name": "bench", "agent": agent})["token"])


def _length(tools: list[Answer]) -> int:
    return len(json.dumps(tools, separators=(",", ":")))


def _try(task: Callable[[Agent], bool], agent: Agent) -> str:
    """Empty, or what went wrong."""
    try:
        return "" if task(agent) else "the task's result is wrong"
    except (Refused, httpx.HTTPError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


def _time_answers(agent: Agent, outcome: Outcome) -> None:
    running = [agent.start(RUNS, name=f"runs-{number}") for number in range(3)]
    for job in running:
        agent.wait(job, "started")
    for _ in range(WAITING):
        agent.start(RUNS)
    took_ms: list[float] = []
    calls: list[tuple[str, Answer]] = [
        ("server", {}),
        ("devices", {}),
        ("queue", {}),
        ("job", {"job": running[0]}),
        ("log", {"job": running[1]}),
        ("metrics", {"job": running[2]}),
        ("triage", {"job": running[0]}),
        ("compare", {"jobs": running[:2]}),
    ]
    by_tool: dict[str, list[float]] = {name: [] for name, _ in calls}
    for number in range(ASKED):
        name, given = calls[number % len(calls)]
        began = time.perf_counter()
        agent(name, **given)
        by_tool[name].append((time.perf_counter() - began) * 1000)
        took_ms.append(by_tool[name][-1])
    outcome.figures["mcp_answer_p95_ms"] = percentile(took_ms, 95)
    outcome.details["mcp_answer_ms"] = spread(took_ms)
    outcome.details["by_tool_ms"] = {name: spread(each) for name, each in by_tool.items()}


# The tasks: each starts what it needs, and is right or not


def knows_who_it_is(agent: Agent) -> bool:
    me = agent("server")
    agent_is = (me["agent"]["name"], me["agent"]["width"])
    return agent_is == ("bench", 3) and bool(me["pools"][0]["devices"] == 4)


def finds_free_devices(agent: Agent) -> bool:
    return bool(sum(one["state"] == "free" for one in agent("devices")["devices"]) == 4)


def plans_without_submitting(agent: Agent) -> bool:
    plan = agent("plan", job={"gpus": 1, "time_limit_s": 60})
    return bool(plan["starts_now"]) and not agent("queue")["jobs"]


def trains_to_the_end(agent: Agent) -> bool:
    job = agent.start(ENDS)
    return agent.end_of(job) == "succeeded" and bool(agent("job", job=job)["last_values"]["loss"] == 0.02)


def finds_a_job_by_name(agent: Agent) -> bool:
    job = agent.start(ENDS, name="the-only-one")
    agent.wait(job)
    return bool(agent("job", job="the-only-one")["id"] == job)


def reads_the_end_of_a_log(agent: Agent) -> bool:
    job = agent.start(ENDS)
    agent.wait(job)
    return str(agent("log", job=job, lines=1)["text"]).startswith("step 49/50")


def finds_a_line_in_a_log(agent: Agent) -> bool:
    job = agent.start(ENDS)
    agent.wait(job)
    return bool(agent("log", job=job, find="step 7/")["total"] == 1)


def sees_a_spike(agent: Agent) -> bool:
    job = agent.start(SPIKES)
    agent.wait(job)
    points = agent("metrics", job=job, names=["loss"], points=200)["series"]["loss"]
    return len(points) <= 200 and max(value for _, value in points) == 1e6


def triages_a_failure(agent: Agent) -> bool:
    job = agent.start(FAILS, max_retries=0)
    agent.wait(job)
    said = agent("triage", job=job)
    return "KeyError" in said["sentence"] + said["log"]


def mends_a_failure(agent: Agent) -> bool:
    broken = agent.start("import sys\nprint('step 1 loss 0.5')\nsys.exit(len(sys.argv) < 2)\n", max_retries=0)
    agent.wait(broken)
    change = {"args": ["--lr"]}
    agent("plan", like=broken, job=change)
    return agent.end_of(agent("submit", like=broken, job=change)["id"]) == "succeeded"


def compares_two_runs(agent: Agent) -> bool:
    jobs = [agent.start(ENDS, args=["--lr", value]) for value in ("1", "2")]
    for job in jobs:
        agent.wait(job)
    return bool(agent("compare", jobs=jobs)["differs"]["--lr"] == ["1", "2"])


def sweeps(agent: Agent) -> bool:
    job = {"source": {"text": ENDS}, "time_limit_s": 600, "array": 3}
    agent("plan", job=job)
    return [agent.end_of(each) for each in agent("submit", job=job)["jobs"]] == ["succeeded"] * 3


def submits_once(agent: Agent) -> bool:
    job = {"source": {"text": ENDS}, "time_limit_s": 600}
    agent("plan", job=job)
    first, second = (agent("submit", job=job, key="once")["id"] for _ in range(2))
    return bool(first == second) and bool(agent.wait(first)["done"])


def stops_after_a_preview(agent: Agent) -> bool:
    job = agent.start(RUNS)
    agent.wait(job, "started")
    agent.stop(job)
    return agent.end_of(job) == "cancelled"


def cannot_stop_with_an_old_preview(agent: Agent) -> bool:
    job = agent.start(RUNS)
    agent.wait(job, "started")
    agent("preview_stop", job=job)
    refused = agent.refused("stop", "Call preview_stop", job=job, confirm="00000000")
    agent.stop(job)
    return refused and agent.end_of(job) == "cancelled"


def stays_within_its_width(agent: Agent) -> bool:
    jobs = [agent.start(RUNS) for _ in range(4)]
    for job in jobs[:3]:
        agent.wait(job, "started")
    waits = agent("triage", job=jobs[3])["sentence"]
    for job in jobs[::-1]:
        agent.stop(job)
    return all(agent.wait(job)["done"] for job in jobs) and "Limit of the agent bench" in waits


def orders_its_waiting_jobs(agent: Agent) -> bool:
    jobs = [agent.start(RUNS, gpus=gpus) for gpus in (3, 3, 3)]
    agent.wait(jobs[0], "started")
    agent("move", job=jobs[2], before=jobs[1])
    agent.stop(jobs[0])
    agent.wait(jobs[2], "started")
    second = agent("job", job=jobs[1])["state"]
    for job in jobs[1:]:
        agent.stop(job)
    return all(agent.wait(job)["done"] for job in jobs) and second == "queued"


def is_refused_without_a_plan(agent: Agent) -> bool:
    job = {"source": {"text": ENDS}, "time_limit_s": 543}
    return agent.refused("submit", "planned within the last hour", job=job)


def is_refused_beyond_its_budget(agent: Agent) -> bool:
    return agent.refused("plan", "device-hours remaining", job={"gpus": 3, "time_limit_s": 360_000})


def is_told_what_a_tool_takes(agent: Agent) -> bool:
    return agent.refused("log", "it takes job, rank, lines, find", id="x", job="x")


TASKS = (
    knows_who_it_is,
    finds_free_devices,
    plans_without_submitting,
    trains_to_the_end,
    finds_a_job_by_name,
    reads_the_end_of_a_log,
    finds_a_line_in_a_log,
    sees_a_spike,
    triages_a_failure,
    mends_a_failure,
    compares_two_runs,
    sweeps,
    submits_once,
    stops_after_a_preview,
    cannot_stop_with_an_old_preview,
    stays_within_its_width,
    orders_its_waiting_jobs,
    is_refused_without_a_plan,
    is_refused_beyond_its_budget,
    is_told_what_a_tool_takes,
)
