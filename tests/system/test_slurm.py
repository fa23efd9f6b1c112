"""Jobs on allocations of a real Slurm, which runs on this machine alone."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.system.nodes import nodes_setting
from tests.system.server import Prepared, Server, processes
from tests.system.slurm import Cluster, lender, slurm_here

pytestmark = pytest.mark.slow

JOBS, STEPS = 20, 200
# Counts, keeps its count in a zip as torch.save does, and says where each attempt began.
COUNT = """
import os, pathlib, sys, time, zipfile
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "count.pt")
done = 0
if "--resume" in sys.argv:
    with zipfile.ZipFile(path) as file:
        done = int(file.read("count"))
print("began at", done, flush=True)
for step in range(done + 1, int(sys.argv[1]) + 1):
    time.sleep(0.1)
    if step % 5 == 0:
        with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
            file.writestr("count", str(step))
        path.with_suffix(".part").replace(path)
    print("step", step, "loss", 1 / step, flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_here() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def head(cluster: Cluster, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one CPU slot of its own, and a pool whose devices Slurm lends."""
    folder = tmp_path_factory.mktemp("head") / "berth"
    server = Server.copy_of(prepared, folder, "cpu:1", {**nodes_setting(), **cluster.variables})
    try:
        server.start()
        server.post("/pools", {"name": "cluster"})
        yield server
    finally:
        server.clean_up()
        for pid in left_over():
            raise AssertionError(f"process {pid} outlived its allocation")


def left_over() -> list[int]:
    return [pid for pid, command, _ in processes() if "berth-pilot-" in command and "sbatch" not in command]


@pytest.fixture
def lent(head: Server, cluster: Cluster) -> Iterator[None]:
    """Slurm lends two allocations of one core; at the end of the test all are given back."""
    lend(head, lender())
    yield
    head.leave_idle()
    lend(head, lender(most_pilots=0))
    head.wait_until(lambda: not open_pilots(head))


def lend(head: Server, body: dict[str, Any]) -> None:
    status, answer = head.call("PUT", "/pools/cluster/lender", body)
    assert status == 200, answer


def pilots(head: Server) -> list[dict[str, Any]]:
    return list(head.get("/pools/cluster/lender")["pilots"])


def open_pilots(head: Server) -> list[dict[str, Any]]:
    return [pilot for pilot in pilots(head) if pilot["state"] != "ended"]


def held(head: Server) -> list[dict[str, Any]]:
    return [pilot for pilot in pilots(head) if pilot["state"] == "held" and not pilot["given_back_at"]]


def submit(head: Server, steps: int, **fields: Any) -> str:
    return head.submit(
        COUNT,
        pool="cluster",
        gpus=1,
        args=[str(steps)],
        resume_args=["--resume"],
        **fields,
    )


def counted(head: Server, job: str) -> list[int]:
    """Every step that any attempt of a job printed, in the order of attempts."""
    return [
        int(line.split()[1])
        for attempt in head.attempts(job)
        for line in head.log(job, attempt=attempt["number"]).splitlines()
        if line.startswith("step ")
    ]


def saving(head: Server, jobs: list[str]) -> list[str]:
    """The jobs that run now and have a checkpoint here."""
    running = [job for job in jobs if head.job(job)["state"] == "running"]
    return [job for job in running if head.get(f"/jobs/{job}/checkpoints")["results"]]


def test_twenty_jobs_end_right_though_one_allocation_is_cancelled_midway(head, cluster, lent):
    jobs = [submit(head, STEPS) for _ in range(JOBS)]
    head.wait_until(lambda: any(head.job(job)["state"] == "succeeded" for job in jobs))
    head.wait_until(lambda: saving(head, jobs))
    job = saving(head, jobs)[0]
    victim = next(pilot for pilot in held(head) if pilot["name"] in str(head.attempts(job)[-1]))

    cluster.run("scancel", victim["grant"])

    ended = [head.wait_for_end(job, 1800) for job in jobs]
    assert [job["state"] for job in ended] == ["succeeded"] * JOBS, head.logs()
    assert cluster.state(victim["grant"]) == "CANCELLED"
    for job in jobs:
        steps = counted(head, job)
        assert steps[-1] == STEPS
        assert set(steps) == set(range(1, STEPS + 1))
        # An attempt began only when the one before was over; one that was never started has no beginning.
        begun = [attempt for attempt in head.attempts(job) if attempt["started_at"]]
        for before, after in pairwise(begun):
            assert before["ended_at"] <= after["started_at"]
    assert any(went_on_from(head, job) for job in jobs)


def went_on_from(head: Server, job: str) -> int:
    """The step from which a job's last attempt went on; 0: from none."""
    last = head.attempts(job)[-1]["number"]
    return int(head.log(job, attempt=last).split("began at ")[1].split()[0])


def test_idle_allocation_is_given_back(head, cluster, lent):
    lend(head, lender(idle_s=3))
    job = submit(head, 5)
    assert head.wait_for_end(job)["state"] == "succeeded"
    number = pilots(head)[0]["grant"]

    head.wait_until(lambda: not open_pilots(head))

    assert cluster.state(number) == "CANCELLED"
    head.wait_until(lambda: not left_over())


def test_jobs_leave_with_a_checkpoint_before_the_allocation_ends_and_go_on_in_another(head, lent):
    lend(head, lender(longest_s=180, leave_before_s=60, most_pilots=1))
    job = submit(head, 900)

    ended = head.wait_for_end(job, 1800)

    assert ended["state"] == "succeeded", head.logs()
    begun = [attempt for attempt in head.attempts(job) if attempt["started_at"]]
    assert len(begun) > 1
    assert {attempt["exit_kind"] for attempt in begun[:-1]} == {"preempted"}
    assert went_on_from(head, job) > 0
    assert "Stops with a checkpoint before the end of cluster-slurm-1." in " ".join(head.reasons(job))


def test_job_waits_with_the_reason_that_slurm_gives(head, cluster, lent):
    others = cluster.submit("sleep 600", "--cpus-per-task=2", "--time=10")
    try:
        job = submit(head, 5)
        head.wait_until(lambda: "(Resources)" in str(head.job(job)["explanation"]))
        waiting = [pilot for pilot in pilots(head) if pilot["state"] == "waiting"]
        assert waiting
        assert waiting[0]["expected_at"]
    finally:
        cluster.run("scancel", others)
    assert head.wait_for_end(job)["state"] == "succeeded"


def test_wrong_partition_is_told_on_the_pool_and_the_job_in_the_words_of_sbatch(head, lent):
    lend(head, lender(partition="nowhere"))
    job = submit(head, 5)

    head.wait_until(lambda: head.get("/pools/cluster/lender")["problem"])

    assert "invalid partition specified: nowhere" in head.get("/pools/cluster/lender")["problem"]
    head.wait_until(lambda: "invalid partition specified: nowhere" in str(head.job(job)))
    lend(head, lender())
    assert head.wait_for_end(job)["state"] == "succeeded"
