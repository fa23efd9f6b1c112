"""Several jobs on one device, each with the memory it claimed."""

import pytest

from tests.system.queue_page import open_queue
from tests.system.server import Server

pytestmark = pytest.mark.slow

HOLD = """
import os, time
held = bytearray(b"x") * (int(os.environ["MIB"]) * 2**20)
print("holds", flush=True)
time.sleep(300)
"""


def test_f86_three_jobs_share_a_device_and_the_one_that_outgrows_its_claim_is_limited(server: Server) -> None:
    claim = {"gpu_memory_gib": 0.25, "max_retries": 3, "grace_period_s": 0}
    modest = [server.submit(HOLD, env={"MIB": "50"}, **claim) for _ in range(2)]
    for job in modest:
        server.wait_for_line(job, "holds\n")
    greedy = server.submit(HOLD, env={"MIB": "600"}, **claim)

    # Limited, and then given what it showed to need.
    with open_queue(server) as page:
        server.wait_until(lambda: page.look() and server.job(greedy)["attempt_count"] > 1, 90)
    server.wait_until(lambda: (server.job(greedy)["memory_claim"] or {})["source"] == "raised")
    first = server.attempts(greedy)[0]
    devices = {server.job(job)["attempt"]["devices"][0]["id"] for job in modest}
    beside = [server.job(job) for job in modest]
    claimed = server.job(greedy)["memory_claim"]["bytes"]
    for job in (greedy, *modest):
        server.post(f"/jobs/{job}/cancel")
    for job in (greedy, *modest):
        server.wait_for_end(job)

    assert {first["devices"][0]["id"]} == devices, "all three were on one device"
    assert first["exit_kind"] == "oom_gpu"
    assert page.said("Tries again after a failure, with")
    assert claimed > 0.25 * 2**30
    assert [(job["state"], job["attempt_count"]) for job in beside] == [("running", 1)] * 2
