"""How soon a sleeping service answers, what its door adds to an answer, and how many answers are late under overload.

The program of the service sleeps for a fixed time and answers one request after the other, so what is beyond that time is
Berth's. The same program is asked on its own socket in the same run, in turns.
"""

import asyncio
import http.client
import socket
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.server import Client, Server
from benchmarks.stats import median, percentile, spread

FIGURES = (
    Figure("first_answer_from_zero_s", "s", "a request to a sleeping service, until its answer, median", 5),
    Figure("p99_added_ms", "ms", "an answer through the door above one on its socket, 99 % of each", 5),
    Figure(
        "late_answers_percent",
        "%",
        "answers after their deadline, of all accepted, at twice what it can do",
        1,
    ),
    Figure("refused_percent", "%", "requests refused at once in that overload"),
    Figure("used_percent", "%", "of what one replica can do, answered in time in that overload"),
)
SCRIPT = ROOT / "benchmarks" / "scripts" / "answering.py"
NAME = "bench"
STARTS = 7
ROUNDS = 600
ANSWERS_IN_S = 0.05
OVERLOAD = 2.0
OVERLOAD_S = 20.0
DEADLINE_S = 0.5
WITHIN_S = 120.0


def measure() -> Outcome:
    outcome = Outcome()
    with Server("cpu:2") as server:
        client = server.client()
        _begin(client, 0.001)
        key = str(client.post(f"/services/{NAME}/keys", {"name": "bench"})["key"])
        _measure_starts(server, client, key, outcome)
        _measure_added(server, client, key, outcome)
        _change(client, {"job": _job(ANSWERS_IN_S), "deadline_s": 30, "idle_s": 3600})
        _wait(lambda: _is_replaced(client))
        asyncio.run(_measure_overload(server, key, outcome))
    return outcome


def _job(answers_in_s: float) -> dict[str, Any]:
    words = ["python", "train.py", str(answers_in_s)]
    return {"command": words, "source": {"text": SCRIPT.read_text()}, "gpus": 1}


def _begin(client: Client, answers_in_s: float) -> None:
    client.post("/services", {"name": NAME, "job": _job(answers_in_s), "idle_s": 1})


def _change(client: Client, changes: dict[str, Any]) -> None:
    client.patch(f"/services/{NAME}", changes)


def _ask(server: Server, key: str) -> float:
    """The time of one answer, over a connection of its own, in seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WITHIN_S)
    began = time.perf_counter()
    connection.request("GET", f"/serve/{NAME}/", headers={"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    answer.read()
    took_s = time.perf_counter() - began
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"the service answered {answer.status}")
    return took_s


def _measure_starts(server: Server, client: Client, key: str, outcome: Outcome) -> None:
    times_s = []
    for _ in range(STARTS):
        _wait(lambda: not client.get("/jobs?state=queued,starting,running,stopping")["results"])
        times_s.append(_ask(server, key))
    outcome.figures["first_answer_from_zero_s"] = median(times_s)
    outcome.details["first_answer_from_zero_s"] = spread(times_s, 3)


def _measure_added(server: Server, client: Client, key: str, outcome: Outcome) -> None:
    """Through the door and on the socket, in turns."""
    _change(client, {"idle_s": 3600})
    _ask(server, key)
    job = client.get(f"/services/{NAME}")["replicas"][0]["job"]
    place = server.home / "jobs" / job / "attempts" / "1" / "session" / "http"
    through_ms, direct_ms = [], []
    for number in range(ROUNDS + 20):
        through, direct = 1000 * _ask(server, key), 1000 * _ask_directly(place)
        if number >= 20:
            through_ms.append(through)
            direct_ms.append(direct)
    outcome.figures["p99_added_ms"] = percentile(through_ms, 99) - percentile(direct_ms, 99)
    outcome.details["through_ms"], outcome.details["direct_ms"] = spread(through_ms, 2), spread(direct_ms, 2)


def _ask_directly(place: Path) -> float:
    began = time.perf_counter()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: service\r\nConnection: close\r\n\r\n")
        while connection.recv(65536):
            pass
    return time.perf_counter() - began


async def _measure_overload(server: Server, key: str, outcome: Outcome) -> None:
    """Twice as many requests as one replica can answer, evenly, each with the same deadline."""
    every_s = ANSWERS_IN_S / OVERLOAD
    headers = {"Authorization": f"Bearer {key}", "Berth-Deadline-Ms": str(1000 * DEADLINE_S)}
    found: list[tuple[int, float]] = []
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}", timeout=WITHIN_S, limits=httpx.Limits(max_connections=500)
    ) as client:

        async def ask() -> None:
            began = time.perf_counter()
            answer = await client.get(f"/serve/{NAME}/", headers=headers)
            found.append((answer.status_code, time.perf_counter() - began))

        asking, began = [], time.perf_counter()
        for number in range(round(OVERLOAD_S / every_s)):
            await asyncio.sleep(max(0.0, began + number * every_s - time.perf_counter()))
            asking.append(asyncio.create_task(ask()))
        await asyncio.gather(*asking)
        lasted_s = time.perf_counter() - began
    accepted = [(status, took_s) for status, took_s in found if status != 429]
    late = sum(status == 504 or took_s > DEADLINE_S for status, took_s in accepted)
    in_time = sum(status == 200 and took_s <= DEADLINE_S for status, took_s in accepted)
    outcome.figures["late_answers_percent"] = 100 * late / max(1, len(accepted))
    outcome.figures["refused_percent"] = 100 * (len(found) - len(accepted)) / len(found)
    outcome.figures["used_percent"] = 100 * in_time * ANSWERS_IN_S / lasted_s
    outcome.details["overload"] = {
        "requests": len(found),
        "statuses": {
            str(status): sum(each == status for each, _ in found) for status in {one for one, _ in found}
        },
        "answered_ms": spread([1000 * took_s for status, took_s in accepted if status == 200]),
        "refused_ms": spread([1000 * took_s for status, took_s in found if status == 429]),
    }


def _is_replaced(client: Client) -> bool:
    replicas = client.get(f"/services/{NAME}")["replicas"]
    return [each["state"] for each in replicas if each["revision"] > 1] == ["ready"] and len(replicas) == 1


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the service did not come to where it should")
        time.sleep(0.05)
