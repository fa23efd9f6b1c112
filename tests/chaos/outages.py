"""``python -m tests.chaos.outages``: how long the worst outages last; kept in benchmarks/results/outages.json."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import RESULTS, read_host, read_load, read_versions
from tests.chaos.campaign import write_json
from tests.system.server import Server, prepare_home
from tests.system.trainings import train

TARGETS = {"killed_to_decision_s": 30, "reboot_to_training_s": 60}
LONG = 100_000  # steps
PATIENCE_S = 240


def main() -> int:
    load_before = read_load()
    figures = {}
    with tempfile.TemporaryDirectory(prefix="berth-outages-") as folder:
        home = Path(folder) / "berth"
        server = Server(home, prepare_home(home), "cpu:2")
        try:
            server.start()
            for name, measure in MEASURES.items():
                figures[name] = round(measure(server), 2)
                sys.stdout.write(f"{name} {figures[name]}\n")
                sys.stdout.flush()
        finally:
            server.clean_up()
    record = {
        "benchmark": "outages",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": read_host(),
        "versions": read_versions(),
        "load": {"before": load_before, "after": read_load()},
        "figures": figures,
        "targets": TARGETS,
    }
    write_json(RESULTS / "outages.json", record)
    return 0 if all(figures[name] <= most for name, most in TARGETS.items()) else 1


def measure_killed(server: Server) -> float:
    """SIGKILL of everything of ours, trainings too, until the first job has its devices again."""
    jobs = [train(server, LONG, grace_period_s=1) for _ in range(2)]
    for job in jobs:
        server.wait_for_line(job, "step 40 ", limit_s=PATIENCE_S)
    began = time.monotonic()
    server.kill_everything()
    server.start()
    server.wait_until(lambda: any(len(server.attempts(job)) > 1 for job in jobs), PATIENCE_S)
    took_s = time.monotonic() - began
    _cancel(server, jobs)
    return took_s


def measure_reboot(server: Server) -> float:
    """The same, but found by another boot of the machine; until every training is at a step again."""
    jobs = [train(server, LONG, grace_period_s=1) for _ in range(2)]
    for job in jobs:
        server.wait_for_line(job, "step 40 ", limit_s=PATIENCE_S)
    began = time.monotonic()
    server.kill_everything()
    for job in jobs:
        path = server.folder(job, 1) / "supervisor.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "of the boot before"}))
    server.start()
    for job in jobs:
        server.wait_for_line(job, "step ", attempt=2, limit_s=PATIENCE_S)
    took_s = time.monotonic() - began
    _cancel(server, jobs)
    return took_s


def _cancel(server: Server, jobs: list[str]) -> None:
    for job in jobs:
        server.post(f"/jobs/{job}/cancel")
    for job in jobs:
        server.wait_for_end(job)


MEASURES: dict[str, Callable[[Server], float]] = {
    "killed_to_decision_s": measure_killed,
    "reboot_to_training_s": measure_reboot,
}

if __name__ == "__main__":
    sys.exit(main())
