"""A run over two servers: one nonce, one numbering of ranks, one end."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from orchestrator.agent.follow import Follower
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import engine_of, order_of
from orchestrator.links.gang import merged_end
from orchestrator.links.mirror import Mirror
from orchestrator.models import Attempt
from orchestrator.store.metrics.series import last_values
from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.records import read_record
from orchestrator.supervisor.watch.finished_files import read_finished_files, write_finished_files
from tests.waiting import wait_until

SUM = b"""
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
with open(os.environ["BERTH_METRICS_FILE"], "a") as file:
    file.write('{"step": 1, "of_rank_%d": %d}\\n' % (dist.get_rank(), dist.get_rank()))
print("rank", dist.get_rank(), "of", dist.get_world_size(), "local", os.environ["LOCAL_RANK"], "sum", value.item(), flush=True)
dist.destroy_process_group()
"""
WAITS = b"""
import os, sys, time
print("up", os.environ["RANK"], flush=True)
if os.environ["RANK"] == os.environ.get("FAILS"):
    raise ValueError("the data has a hole")
time.sleep(3600)
"""


def end(kind: str, rank: int, **fields: object) -> dict[str, Any]:
    ranks = [{"rank": rank, "code": 0, "signal": None, "finished": kind == "ok"}]
    return {"kind": kind, "ranks": ranks, "run_s": 1.0 + rank, "stop": None, **fields}


RAISED = {"first_failure": {"rank": 1, "exception": "ValueError"}, "peers_lost": False}
PEER = {"first_failure": {"rank": 0, "exception": "DistBackendError"}, "peers_lost": True}
STOPPED = {"stop": {"reason": "gang"}}


@pytest.mark.parametrize(
    ("ends", "kind", "cause"),
    [
        ([end("ok", 1), end("ok", 0)], "ok", 1),
        ([end("user_error", 0, **PEER), end("user_error", 1, **RAISED)], "user_error", 1),
        ([end("signal", 1), end("user_error", 0, **PEER)], "signal", 1),
        ([end("ok", 0), end("infra", 1)], "infra", 1),
        ([end("oom_gpu", 1), end("infra", 0, **STOPPED)], "oom_gpu", 1),
        ([end("cancelled", 1, stop={"reason": "cancel"}), end("user_error", 0, **PEER)], "cancelled", 1),
    ],
    ids=[
        "ok",
        "a rank raised",
        "a rank was killed",
        "one could not start",
        "others were stopped",
        "cancelled",
    ],
)
def test_part_that_caused_the_end_tells_its_kind(ends: list[Mapping[str, Any]], kind: str, cause: int):
    merged: Mapping[str, Any] = merged_end([dict(each) for each in ends])

    assert merged["kind"] == kind
    assert [row["rank"] for row in merged["ranks"]] == [0, 1]
    assert merged["run_s"] == 2.0
    caused = next(each for each in ends if each["ranks"][0]["rank"] == cause)
    assert merged.get("first_failure") == caused.get("first_failure")


def test_each_part_says_which_ranks_are_its_own(over_two):
    servers = over_two(SUM, (2, 1))

    first, second = (
        read_record(servers.folder.launch) or {},
        read_record(servers.folder.part("gpu2").launch) or {},
    )

    assert [first[name] for name in ("nodes", "node_rank", "first_rank", "ranks")] == [2, 0, 0, 2]
    assert [second[name] for name in ("nodes", "node_rank", "first_rank", "ranks")] == [2, 1, 2, 1]
    assert first["nonce"] == second["nonce"]


def test_checkpoint_is_complete_here_only_once_every_server_brought_its_shards(over_two):
    servers = over_two(SUM)
    mirrors = {
        name: Mirror(servers.ports[name], order, servers.job, servers.gang)
        for name, order in servers.orders.items()
    }
    for mirror in mirrors.values():
        mirror.push()
    saved = {name: servers.there(name) / "checkpoints" / "step-10" for name in mirrors}
    for folder in saved.values():
        folder.mkdir(parents=True)
    (saved["gpu1"] / "rank0.pt").write_bytes(b"shard 0")
    (saved["gpu2"] / "rank1.pt").write_bytes(b"shard 1")
    (saved["gpu1"] / "manifest.json").write_bytes(b"complete")
    here = servers.job.checkpoints / "step-10"

    for _ in range(3):
        mirrors["gpu1"].pull_trees(closed=True)
    assert not here.exists()  # nobody knows what the other server has
    mirrors["gpu2"].pull_trees(closed=True)
    assert [path.name for path in here.iterdir()] == ["rank1.pt"]
    mirrors["gpu1"].pull_trees(closed=True)

    assert sorted(path.name for path in here.iterdir()) == ["manifest.json", "rank0.pt", "rank1.pt"]


def test_server_leaves_files_alone_that_it_did_not_write(over_two):
    servers = over_two(SUM)
    (servers.job.checkpoints / "old.pt").write_bytes(b"before")
    mirrors = [
        Mirror(servers.ports[name], order, servers.job, servers.gang)
        for name, order in servers.orders.items()
    ]
    for mirror in mirrors:
        mirror.push()
    (servers.there("gpu2") / "checkpoints" / "old.pt").write_bytes(b"of rank 1")
    (servers.there("gpu1") / "output" / "result").write_bytes(b"of rank 0")

    for _ in range(2):
        for mirror in mirrors:
            mirror.pull_trees(closed=True)

    assert (servers.job.checkpoints / "old.pt").read_bytes() == b"of rank 1"
    assert (servers.job.output / "result").read_bytes() == b"of rank 0"
    (servers.there("gpu2") / "checkpoints" / "old.pt").unlink()
    mirrors[1].pull_trees(closed=True)
    assert not (servers.job.checkpoints / "old.pt").exists()
    assert (servers.job.output / "result").exists()


def test_folder_that_rank_0_removes_is_gone_with_the_shards_of_others(over_two):
    servers = over_two(SUM)
    mirrors = [
        Mirror(servers.ports[name], order, servers.job, servers.gang)
        for name, order in servers.orders.items()
    ]
    for mirror in mirrors:
        mirror.push()
    for number, name in enumerate(servers.orders):
        folder = servers.there(name) / "checkpoints" / "step-1"
        folder.mkdir(parents=True)
        (folder / f"rank{number}.pt").touch()
    for _ in range(3):
        for mirror in mirrors:
            mirror.pull_trees(closed=True)
    here = servers.job.checkpoints / "step-1"
    assert sorted(path.name for path in here.iterdir()) == ["rank0.pt", "rank1.pt"]

    rmtree(servers.there("gpu1") / "checkpoints" / "step-1")
    for _ in range(3):
        for mirror in mirrors:
            mirror.pull_trees(closed=True)

    assert not here.exists()


def test_files_that_any_supervisor_saw_finished_are_proven(over_two):
    servers = over_two(SUM)
    signature = (1, 2, 3, 4)
    boot = boot_id()
    write_finished_files(
        servers.folder.part("gpu2").finished_files, {"checkpoints/rank1.pt": signature}, boot=boot
    )
    write_finished_files(servers.folder.finished_files, {"checkpoints/rank0.pt": signature}, boot=boot)

    assert set(read_finished_files(servers.folder)) == {"checkpoints/rank0.pt", "checkpoints/rank1.pt"}


@pytest.mark.slow
def test_unchanged_torchrun_script_runs_over_two_servers(over_two):
    servers = over_two(SUM)
    servers.start()

    record = servers.wait_for(Liveness.ENDED)

    assert record["kind"] == "ok", servers.everything()
    assert [row["rank"] for row in record["ranks"]] == [0, 1]
    assert [servers.log(rank) for rank in (0, 1)] == [
        f"rank {rank} of 2 local 0 sum 3.0\n" for rank in (0, 1)
    ]
    attempt = Attempt.objects.select_related("job").get(pk=servers.attempt.pk)
    follower = Follower(attempt)
    while follower.poll(at_end=True):
        pass
    follower.close()
    assert {"of_rank_0", "of_rank_1"} <= set(last_values(servers.job.metrics))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_fails_ends_the_run_on_every_server_and_is_named(over_two, rank):
    servers = over_two(WAITS, env={"FAILS": str(rank)})
    servers.start()

    record = servers.wait_for(Liveness.ENDED)

    assert (record["kind"], record["first_failure"]["rank"]) == ("user_error", rank), record
    assert "the data has a hole" in json.dumps(record["facts"])
    assert [f"up {each}" in servers.log(each) for each in (0, 1)] == [True, True]


@pytest.mark.slow
def test_run_that_loses_a_server_stops_everywhere_and_is_lost(over_two):
    servers = over_two(WAITS)
    servers.start()
    for rank in (0, 1):
        servers.wait_for_line(f"up {rank}", rank)
    supervisor = read_record(servers.folder.part("gpu2").supervisor) or {}

    os.kill(int(str(supervisor["pid"])), signal.SIGKILL)

    servers.wait_for(Liveness.LOST)
    assert not any(run.lives for port in servers.ports.values() for run in port.runs())
    assert not servers.folder.exit.exists()


@pytest.mark.slow
def test_state_is_unknown_while_one_server_is_silent_and_a_stop_reaches_all(over_two):
    servers = over_two(WAITS)
    servers.start()
    for rank in (0, 1):
        servers.wait_for_line(f"up {rank}", rank)
    wait_until(lambda: servers.state() is Liveness.ALIVE)
    servers.cut_off.add("gpu2")
    wait_until(lambda: servers.state() is Liveness.UNKNOWN)
    servers.cut_off.clear()
    wait_until(lambda: servers.state() is Liveness.ALIVE)

    engine_of(servers.attempt).stop(order_of(servers.attempt), reason="cancel", grace_s=1, saved=False)

    assert servers.wait_for(Liveness.ENDED)["kind"] == "cancelled"


@pytest.mark.slow
def test_two_ranks_train_the_same_on_two_servers_as_on_one(
    over_two, make_attempt, make_job, make_device, store_script
):
    script = Path("benchmarks/scripts/train_two.py").read_bytes()
    servers = over_two(script)
    servers.start()
    assert servers.wait_for(Liveness.ENDED)["kind"] == "ok", servers.everything()

    job = make_job(bundle=store_script(script), spec={"gpus": 2})
    alone = make_attempt(job, devices=[make_device(number, kind="cpu") for number in (2, 3)])
    launcher.start(alone)
    folder = launcher.folder_of(alone)
    wait_until(folder.exit.exists)

    losses = folder.log(0).read_text().splitlines()
    assert len(losses) == 40
    assert servers.log(0).splitlines() == losses
