"""A sweep on a real server whose parts are killed while it searches."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.berth.conftest import environment_for
from tests.system.server import REPOSITORY, Server
from tests.system.trainings import SEARCHED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_no_trial_is_lost_or_doubled_though_worker_and_agent_are_killed(
    make_server: Callable[..., Server], tmp_path
) -> None:
    server = make_server("cpu:3").start()
    script = tmp_path / "fit.py"
    script.write_text(SEARCHED)
    words = ["sweep", str(script), "--set", "lr=log:1e-5..1e-1", "--set", "wd=0,0.5", "--metric", "loss"]
    words += ["--direction", "minimize", "--budget", "5 trials", "--width", "3", "--seed", "3"]
    words += ["--launcher", "direct", "--steps", "18", "--json"]
    begun = berth(server, *words)

    server.wait_until(lambda: len(trials(server, begun["id"])) >= 2)
    server.kill_service("worker", tree=True)
    server.wait_until(lambda: any(trial["reports"] for trial in trials(server, begun["id"])))
    server.kill_service("agent")
    server.wait_until(lambda: server.get(f"/sweeps/{begun['id']}")["state"] != "running")

    ended = server.get(f"/sweeps/{begun['id']}")
    found = trials(server, begun["id"])
    jobs = server.get("/jobs?limit=100")["results"]
    assert ended["reason"] == "All 5 trials of its budget have run."
    assert [trial["number"] for trial in found] == list(range(5))
    assert Counter(trial["job"] for trial in found) == Counter(job["id"] for job in jobs)
    for trial in found:
        told = [report["rung"] for report in trial["reports"]]
        assert told == ended["rungs"][: len(told)]
    assert any(trial["state"] == "ended" for trial in found)
    values = [report["value"] for trial in found for report in trial["reports"]]
    assert ended["best"]["value"] == min(values)
    assert berth(server, "best", "--json")[0]["number"] == ended["best"]["number"]


def trials(server: Server, sweep: str) -> list[dict[str, Any]]:
    return list(server.get(f"/sweeps/{sweep}/trials")["results"])


def berth(server: Server, *words: str) -> Any:
    """What the command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "berth.cli", *words],
        cwd=REPOSITORY,
        env=environment_for(f"http://127.0.0.1:{server.port}", server.token),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
