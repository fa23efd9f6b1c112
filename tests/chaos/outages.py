"""``python -m tests.chaos.outages``: how long the worst outages last; kept in benchmarks/results/outages.json."""

import argparse
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

TARGETS = {"killed_to_decision_s": 30, "reboot_to_training_s": 60, "stuck_to_training_s": 90}
LONG = 100_000  # steps
PATIENCE_S = 240
# Two ranks of the training library; one of them stops in the middle of its first attempt.
STUCK = """
import os, time, torch
from training import TrainConfig, Trainer

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.passes = torch.nn.Linear(20, 2), 0
        self.stops = os.environ["RANK"] == "1" and os.environ["BERTH_ATTEMPT"] == "1"

    def forward(self, batch):
        self.passes += 1
        if self.passes == 200 and self.stops:
            print("stuck", flush=True)
            time.sleep(1e6)
        if self.passes % 20 == 0:
            print("pass", self.passes, flush=True)
        time.sleep(0.02)
        return self.layer(batch)

torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(4096, 20), torch.randint(2, (4096,)))
config = TrainConfig(batch_size=16, epochs=1000, checkpoint_every=50)
Trainer(config).fit(Net(), data, loss_fn=torch.nn.functional.cross_entropy)
"""


def main() -> int:
    argparse.ArgumentParser(description=__doc__, epilog="It takes some minutes.").parse_args()
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
    jobs = _train_two(server)
    began = time.monotonic()
    server.kill_everything()
    server.start()
    server.wait_until(lambda: any(len(server.attempts(job)) > 1 for job in jobs), PATIENCE_S)
    took_s = time.monotonic() - began
    _cancel(server, jobs)
    return took_s


def measure_reboot(server: Server) -> float:
    """The same, but found by another boot of the machine; until every training is at a step again."""
    jobs = _train_two(server)
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


def measure_stuck(server: Server) -> float:
    """One of two ranks stands still while the other waits for it, until both train again."""
    job = server.submit(STUCK, gpus=2, grace_period_s=5)
    server.wait_for_line(job, "stuck", rank=1, limit_s=PATIENCE_S)
    began = time.monotonic()
    server.wait_for_line(job, "pass ", attempt=2, rank=1, limit_s=PATIENCE_S)
    took_s = time.monotonic() - began
    if (kind := server.attempts(job)[0]["exit_kind"]) != "hang":
        raise AssertionError(f"the first attempt ended with {kind!r}, not because it hung")
    _cancel(server, [job])
    return took_s


def _train_two(server: Server) -> list[str]:
    """Jobs that have checkpoints already."""
    jobs = [train(server, LONG, grace_period_s=1) for _ in range(2)]
    for job in jobs:
        server.wait_for_line(job, "step 40 ", limit_s=PATIENCE_S)
    return jobs


def _cancel(server: Server, jobs: list[str]) -> None:
    for job in jobs:
        server.post(f"/jobs/{job}/cancel")
    for job in jobs:
        server.wait_for_end(job)


MEASURES: dict[str, Callable[[Server], float]] = {
    "killed_to_decision_s": measure_killed,
    "reboot_to_training_s": measure_reboot,
    "stuck_to_training_s": measure_stuck,
}

if __name__ == "__main__":
    sys.exit(main())
