"""Scripts as people have them, unchanged: killed, resumed, and with checkpoints that were damaged."""

import re
import signal
from filecmp import cmp
from pathlib import Path
from zipfile import is_zipfile

import pytest

from tests.system.server import REPOSITORY, Server, kill, processes

pytestmark = pytest.mark.slow

UNCHANGED = REPOSITORY / "examples/unchanged"


def test_a_ddp_tutorial_reads_its_snapshot_back_from_its_fixed_path(server: Server) -> None:
    job = server.submit(
        UNCHANGED / "ddp_tutorial.py",
        gpus=2,
        args=["12", "1", "--pause", "0.1"],
        checkpoint_glob="snapshot.pt",
    )
    server.wait_for_line(job, "Epoch 6 |", limit_s=60)

    kill(server.ranks(job)[:1])
    ended = server.wait_for_end(job)

    first, second = server.log(job, 1), server.log(job, 2)
    saved = int(re.findall(r"Epoch (\d+) \| Training snapshot saved", first)[-1])
    resumed = re.search(r"Resuming training from snapshot at Epoch (\d+)", second)
    assert (ended["state"], ended["attempt_count"]) == ("succeeded", 2)
    assert resumed
    assert saved <= int(resumed[1]) <= saved + 2  # it may die between its save and its line
    assert "Epoch 11 | Training snapshot saved" in second


def test_f54_a_small_gpt_falls_back_from_a_torn_checkpoint_to_the_one_before(server: Server) -> None:
    job = server.submit(
        UNCHANGED / "small_gpt.py",
        args=["--max_iters=2400", "--eval_interval=20", "--eval_iters=1", "--n_layer=1", "--n_embd=16"],
        resume_args=["--init_from=resume"],
        checkpoint_glob="out/ckpt.pt",
    )
    server.wait_until(lambda: len(server.get(f"/jobs/{job}/checkpoints")["results"]) >= 2, 60)

    kill(server.ranks(job), signal.SIGSTOP)
    saved, generations = server.folder(job) / "work/out/ckpt.pt", server.folder(job) / "generations"
    # What it has saved last; a file in whose writing it was stopped is never kept.
    server.wait_until(lambda: _is_kept(saved, generations) or not is_zipfile(saved), 60)
    _tear_newest(generations)
    kill(server.ranks(job))
    ended = server.wait_for_end(job, limit_s=900)

    assert (ended["state"], ended["attempt_count"]) == ("succeeded", 2)
    assert "Resuming training from out" in server.log(job, 2)
    begun = re.search(r"^iter (\d+)", server.log(job, 2), re.MULTILINE)
    assert begun
    assert 20 <= int(begun[1]) < 2400
    fallbacks = [reason for reason in server.reasons(job) if reason.startswith("Fell back from")]
    assert len(fallbacks) == 1, server.reasons(job)


SAVES_OFTEN = """
import json, os, sys, time
path = os.path.join(os.environ["BERTH_CHECKPOINT_DIR"], "state.json")
step = json.load(open(sys.argv[1]))["step"] if len(sys.argv) > 1 else 0
print(f"began at {step}", flush=True)
while step < 140:
    step += 1
    time.sleep(0.05)
    print(f"step {step}/140 loss {1 / step:.4f}", flush=True)
    if step % 10 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump({"step": step}, file)
        os.replace(path + ".tmp", path)
"""


def test_a_script_that_saves_twice_a_second_resumes_where_its_file_says(server: Server) -> None:
    job = server.submit(SAVES_OFTEN, resume_args=["{checkpoint}"])
    server.wait_for_line(job, "step 110/")
    kill(server.ranks(job))

    assert server.wait_for_end(job)["state"] == "succeeded"
    second = server.attempts(job)[1]
    began = int(server.log(job, 2).split()[2])
    assert 20 <= began <= 110
    assert abs(second["resumed_from_step"] - began) < 10, "the step it is called by is the step it holds"
    assert any(f"resumed from step {second['resumed_from_step']}" in each for each in server.reasons(job))


def _newest(generations: Path) -> Path:
    return max(
        (each for each in generations.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name)
    )


def _is_kept(saved: Path, generations: Path) -> bool:
    """Whether the newest generation has a file as it is now."""
    kept = [path for path in _newest(generations).rglob("*") if path.is_file()]
    return any(cmp(path, saved, shallow=False) for path in kept)


def _tear_newest(generations: Path) -> None:
    """Cut the newest generation's largest file in half, as a disk that lied about a write would."""
    largest = max(
        (path for path in _newest(generations).rglob("*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )
    largest.chmod(0o644)
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size // 2)


def test_command_that_starts_its_own_ranks_is_killed_and_resumes(server: Server) -> None:
    script = """
import json, os, pathlib, time
state = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "state.json")
resumed = os.environ.get("BERTH_RESUME_FROM")
begin = json.loads(pathlib.Path(resumed).read_text())["step"] if resumed else 0
if os.environ["RANK"] == "0":
    print("devices", os.environ["LOCAL_WORLD_SIZE"], "begin", begin, flush=True)
for step in range(begin, begin + (8 if resumed else 10_000)):
    if os.environ["RANK"] == "0":
        print(f"step {step} loss {1 / (step + 1):.4f}", flush=True)
        part = state.with_name(".part")
        part.write_text(json.dumps({"step": step}))
        part.replace(state)
    time.sleep(0.1)
"""
    job = server.submit(script, command=["torchrun", "--nproc-per-node", "2", "train.py"], gpus=2)
    server.wait_until(lambda: server.get(f"/jobs/{job}/checkpoints")["results"])
    server.wait_until(lambda: server.job(job)["last_values"].get("loss"))

    kill(pid for pid, _, environ in processes() if {f"BERTH_JOB_ID={job}", "RANK=1"} <= set(environ))
    ended = server.wait_for_end(job)

    first = server.attempts(job)[0]
    assert (ended["state"], ended["attempt_count"]) == ("succeeded", 2), server.log(job, 2)
    assert (first["exit_kind"], first["first_failure"]["rank"]) == ("signal", 1)
    assert "devices 2 begin 0" in server.log(job, 1)
    assert re.search(r"devices 2 begin [1-9]", server.log(job, 2))
    assert ended["entrypoint"] is None
