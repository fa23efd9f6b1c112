"""Jobs over two servers: more ranks than either has devices for."""

from collections.abc import Iterator

import pytest

from tests.system.nodes import NodeServer
from tests.system.server import Server, kill

pytestmark = pytest.mark.slow

# Each rank keeps a shard, and rank 0 says when all of them are there, as torch's own checkpoints do.
SHARDS = """
import json, os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"])
done = 0
if "--resume" in sys.argv:
    newest = pathlib.Path(os.environ["BERTH_RESUME_FROM"])
    done = json.loads((newest / f"rank{rank}.json").read_text())
print("rank", rank, "of", dist.get_world_size(), "began at", done, flush=True)
for step in range(done + 1, int(sys.argv[1]) + 1):
    time.sleep(0.01 if done else 0.1)  # a run that goes on has been killed: nothing waits for it any more
    value = torch.tensor([float(rank)])
    dist.all_reduce(value)
    if step % 10 == 0:
        here = folder / f"step-{step}"
        here.mkdir(exist_ok=True)
        (here / f"rank{rank}.json").write_text(str(step))
        dist.barrier()
        if rank == 0:
            (here / "config.json").write_text("{}")
    print("step", step, "loss", value.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def second(head: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    with NodeServer(head, tmp_path_factory.mktemp("second") / "berth", "second", "cpu:1").joined() as node:
        yield node


def test_job_larger_than_either_server_runs_over_both_and_shows_both(head, second):
    job = head.submit(SHARDS, gpus=2, args=["3"])

    ended = head.wait_for_end(job)

    assert ended["state"] == "succeeded", (ended, second.logs())
    for rank in (0, 1):
        lines = head.log(job, rank=rank).splitlines()
        assert lines[0] == f"rank {rank} of 2 began at 0"
        assert lines[-1] == "step 3 loss 1.0"
    assert [row["finished"] for row in head.attempts(job)[0]["ranks"]] == [True, True]


def test_job_that_lost_one_server_goes_on_from_a_checkpoint_with_all_shards(head, second):
    job = head.submit(
        SHARDS, gpus=2, args=["600"], resume_args=["--resume"]
    )  # longer than a busy machine looks
    head.wait_until(lambda: head.get(f"/jobs/{job}/checkpoints")["results"])

    kill(second.supervisors(job))

    ended = head.wait_for_end(job)
    assert ended["state"] == "succeeded", (ended, second.logs())
    began = [head.log(job, attempt=2, rank=rank).splitlines()[0].split()[-1] for rank in (0, 1)]
    assert began[0] == began[1]
    assert int(began[0]) >= 10
