"""How long a device of a sweep stands empty: from a trial's rung to the first line of the trial after it.

One trial at a time, on a real server, with a script that imports torch and keeps a checkpoint. A trial that is not in
the best third at a rung is paused; its step at that rung and the first line of the next attempt are both printed with
the clock by the script itself.
"""

import re
import time

from benchmarks.figures import ROOT
from benchmarks.server import Client, Server

SCRIPT = ROOT / "benchmarks" / "scripts" / "trial.py"
STEPS = 36
TRIALS = 14
WITHIN_S = 300.0
BEGAN = re.compile(r"^began at (\S+)", re.MULTILINE)
STEPPED = re.compile(r"^stepped (\d+) at (\S+)", re.MULTILINE)
SWEEP = {
    "job": {
        "entrypoint": SCRIPT.name,
        "source": {"text": SCRIPT.read_text()},
        "args": ["--steps", str(STEPS)],
        "total_steps": STEPS,
        "launcher": "direct",
    },
    "space": {"bias": {"type": "float", "low": 0, "high": 1}},
    "metric": "loss",
    "direction": "minimize",
    "sampler": "random",
    "budget": {"trials": TRIALS},
    "max_width": 1,
    "seed": 1,
}


def measure_next_trial_s() -> list[float]:
    """Each time from a rung at which a trial left its device to the first line of the attempt that came next."""
    with Server("cpu:1") as server:
        client = server.client()
        sweep = client.post("/sweeps", SWEEP)
        rungs = set(_wait_for_end(client, sweep["id"])["rungs"])
        logs = _read_logs(server, client, sweep["id"])
    begins = sorted(float(found[1]) for log in logs if (found := BEGAN.search(log)))
    at_rungs = [float(at) for log in logs for step, at in STEPPED.findall(log) if int(step) in rungs]
    # The first one starts the program that has torch loaded already.
    return [began - max(at for at in at_rungs if at < began) for began in begins[2:]]


def _wait_for_end(client: Client, sweep: str) -> dict[str, list[int]]:
    deadline = time.monotonic() + WITHIN_S
    while (now := client.get(f"/sweeps/{sweep}"))["state"] == "running":
        if time.monotonic() > deadline:
            raise RuntimeError(f"the sweep still runs after {WITHIN_S:.0f} s: {now['trials']}")
        time.sleep(0.5)
    found: dict[str, list[int]] = now
    return found


def _read_logs(server: Server, client: Client, sweep: str) -> list[str]:
    """Those of all attempts of all trials."""
    logs = []
    for trial in client.get(f"/sweeps/{sweep}/trials")["results"]:
        attempts = len(client.get(f"/jobs/{trial['job']}/attempts")["results"])
        logs += [server.read_log(trial["job"], attempt=number + 1) for number in range(attempts)]
    return logs
