"""The scheduler at work on a real server: nobody starves, and who makes room goes on where it was."""

import re
import threading
import time
from datetime import datetime
from typing import Any

import pytest

from tests.system.queue_page import open_queue
from tests.system.server import Server

pytestmark = pytest.mark.slow

SHORT = "import time\ntime.sleep(1)\n"
WIDE = "print('all eight', flush=True)\n"
MOST_LOOKS = 2_000  # of some 50 ms
SLACK_S = 60.0  # ranges are told in whole minutes
# Counts without end, saves every tenth step, and when it is asked to stop.
COUNT = """
import os, pathlib, signal, sys, time, zipfile
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "count.pt")
done = 0
if "--resume" in sys.argv:
    with zipfile.ZipFile(path) as file:
        done = int(file.read("count"))
stopped = False

def stop(*_):
    global stopped
    stopped = True

def save(step):
    if os.environ["RANK"] == "0":
        with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
            file.writestr("count", str(step))
        path.with_suffix(".part").replace(path)

signal.signal(signal.SIGTERM, stop)
step = done
while not stopped:
    step += 1
    time.sleep(0.05)
    print("step", step, "loss", 1 / step, flush=True)
    if step % 10 == 0:
        save(step)
save(step)
"""


class Stream:
    """Jobs of one device without end: there are always more than the server can hold."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.stopped = threading.Event()
        self.jobs: list[str] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Stream":
        self._top_up()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join(30)
        for job in self._unfinished():
            self.server.call("POST", f"/jobs/{job['id']}/cancel")
        self.server.wait_until(lambda: not self._unfinished(), 60)

    def _run(self) -> None:
        while not self.stopped.wait(0.5):
            self._top_up()

    def _top_up(self) -> None:
        for _ in range(14 - len(self._unfinished())):
            self.jobs.append(self.server.submit(SHORT, name="small", tags=["stream"]))

    def _unfinished(self) -> list[dict[str, Any]]:
        states = "queued,starting,running,stopping,backoff,unknown"
        found: list[dict[str, Any]] = self.server.get(f"/jobs?tag=stream&state={states}&limit=500")["results"]
        return found


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def first_told(server: Server, job: str) -> dict[str, Any] | None:
    """What a waiting job is told of its start, first; None where it starts before."""
    while (found := server.job(job))["state"] == "queued":
        told: dict[str, Any] | None = found["explanation"]
        if told and told["start_latest"]:
            return told
        time.sleep(0.02)
    return None


def test_a_job_for_all_devices_starts_within_the_range_it_was_told(server: Server) -> None:
    with Stream(server) as stream, open_queue(server) as page:
        for _ in range(3):  # it may start before it was told anything
            wide = server.submit(WIDE, gpus=8, launcher="direct", name="wide")
            told = first_told(server, wide)
            page.look()
            ended = server.wait_for_end(wide, 300)
            assert ended["state"] == "succeeded"
            if told:
                break
        later = [server.job(job) for job in stream.jobs[-3:]]

    assert told is not None
    assert told["sentence"].startswith("Waits for 8 simulated GPUs;")
    assert page.said("Waits for 8 simulated GPUs;")
    started = seconds(ended["started_at"])
    assert seconds(told["start_earliest"]) - SLACK_S <= started <= seconds(told["start_latest"]) + SLACK_S
    assert any(seconds(job["submitted_at"]) > seconds(ended["submitted_at"]) for job in later)


def test_who_makes_room_for_a_higher_priority_loses_at_most_an_interval(server: Server) -> None:
    low = server.submit(
        COUNT, gpus=8, launcher="direct", name="low", preemptible=True, resume_args=["--resume"], priority=40
    )
    server.wait_until(lambda: (server.job(low)["progress"]["step"] or 0) >= 25)

    with open_queue(server) as page:
        high = server.submit(SHORT.replace("1", "4"), name="high", priority=70)
        # Without a pause: what is said while the one job ends stands there for a fraction of a second.
        looks = (page.look() for _ in range(MOST_LOOKS))
        assert any("Made room for high #" in text for text in looks)

    assert page.said("Waits for low to save a checkpoint and make room.")
    assert server.wait_for_end(high)["state"] == "succeeded"
    server.wait_until(lambda: server.job(low)["attempt_count"] == 2 and server.job(low)["progress"]["step"])
    server.wait_until(lambda: "step" in server.log(low, attempt=2))
    last = int(re.findall(r"step (\d+)", server.log(low))[-1])
    first = int(re.findall(r"step (\d+)", server.log(low, attempt=2))[0])
    assert last - 10 <= first <= last + 1
    said = server.reasons(low)
    assert any(each.startswith("Makes room for high #") and each.endswith(" of root.") for each in said)
    assert any("It will go on from" in each for each in said)
    assert any("is stopped to make room." in each for each in server.reasons(high))
    server.post(f"/jobs/{low}/cancel")
    server.wait_for_end(low)


def test_a_script_that_saves_only_when_asked_is_given_the_time(server: Server) -> None:
    script = COUNT.replace("signal.SIGTERM", "signal.SIGUSR1").replace(
        "    stopped = True", "    save(step); print('saved', step, flush=True)"
    )
    low = server.submit(
        script.replace("if step % 10 == 0:", "if False:"),
        gpus=8, launcher="direct", name="asked", preemptible=True, priority=40,
        resume_args=["--resume"], grace_period_s=3600,
    )  # fmt: skip
    server.wait_until(lambda: (server.job(low)["progress"]["step"] or 0) >= 5)

    high = server.submit(SHORT, name="high", priority=70)

    assert server.wait_for_end(high)["state"] == "succeeded", "the grace need not be over"
    saved = int(re.findall(r"saved (\d+)", server.log(low))[-1])
    server.wait_until(lambda: "step" in server.log(low, attempt=2))
    assert int(re.findall(r"step (\d+)", server.log(low, attempt=2))[0]) == saved + 1
    server.post(f"/jobs/{low}/cancel")
    server.wait_for_end(low)
