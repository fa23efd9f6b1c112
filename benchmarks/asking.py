"""How fast people are told when and why, over HTTP: a plan before a submit, the explanation of a waiting job, the queue."""

import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.figures import Figure, Outcome
from benchmarks.server import Client, Server
from benchmarks.stats import percentile, spread

FIGURES = (
    Figure("plan_http_p95_ms", "ms", "POST /plan of a script, 8 jobs run and 100 wait, p95", target=100),
    Figure("explain_http_p95_ms", "ms", "GET /jobs/{id}/explain, any of the 100 that wait, p95", target=100),
    Figure("explain_1000_http_p95_ms", "ms", "the same, any of 1,000 that wait, p95"),
    Figure("queue_http_p95_ms", "ms", "GET /jobs?state=queued, all 100 that wait, p95"),
)
ASKED = 100
WAITING = 100
MANY = 1000
# Reports steps, so that its end is foreseen, and stays until it is cancelled.
RUNS = """
import time
for step in range(100000):
    print(f"step {step}/100000", flush=True)
    time.sleep(1)
"""


def measure(outcome: Outcome) -> None:
    dice = random.Random(3)  # noqa: S311 -- a workload, not a secret
    with Server("sim:8x80GiB") as server:
        client = server.client()
        for number in range(8):
            client.post("/jobs", {"name": f"runs-{number}", "source": {"text": RUNS}, "grace_period_s": 1})
        while len(_jobs(client, "running")) < 8:
            time.sleep(0.1)
        waiting = [_submit(client, dice) for _ in range(WAITING)]
        _settle(client)
        _ask(outcome, "plan_http", lambda: client.post("/plan", _body(dice)))
        _ask(outcome, "explain_http", lambda: client.get(f"/jobs/{dice.choice(waiting)}/explain"))
        _ask(outcome, "queue_http", lambda: client.get("/jobs?state=queued&limit=100"))
        waiting += [_submit(client, dice) for _ in range(MANY - WAITING)]
        _settle(client)
        _ask(outcome, "explain_1000_http", lambda: client.get(f"/jobs/{dice.choice(waiting)}/explain"))


def _ask(outcome: Outcome, name: str, question: Callable[[], Any]) -> None:
    took_ms = []
    for _ in range(ASKED):
        began = time.perf_counter()
        question()
        took_ms.append((time.perf_counter() - began) * 1000)
    outcome.figures[f"{name}_p95_ms"] = percentile(took_ms, 95)
    outcome.details[f"{name}_ms"] = spread(took_ms)


def _body(dice: random.Random) -> dict[str, Any]:
    return {
        "source": {"text": "print('on')\n"},
        "gpus": dice.choice((1, 1, 2, 4, 8)),
        "gpu_memory_gib": dice.choice((None, None, 10.0)),
        "time_limit_s": dice.choice((None, 3600.0, 86400.0)),
        "priority": dice.choice((40, 50, 50, 60)),
        "preemptible": dice.random() < 0.5,
    }


def _submit(client: Client, dice: random.Random) -> str:
    return str(client.post("/jobs", _body(dice))["id"])


def _jobs(client: Client, state: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/jobs?state={state}&limit=500")["results"]
    return found


def _settle(client: Client) -> None:
    """Until every waiting job was told why: then the server is at rest."""
    while not all(job["explanation"] for job in _jobs(client, "queued")):
        time.sleep(0.2)
    time.sleep(1)
