"""Attempts of several ranks through torchrun, and without its agent."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.supervisor.linux.processes import descendants, rank_of
from orchestrator.supervisor.protocol.orders import order_stop
from orchestrator.supervisor.protocol.records import read_record, write_record
from tests.supervisor.conftest import Attempt
from tests.waiting import PATIENCE_S, wait_until

MakeAttempt = Callable[..., Attempt]
TWO_RANKS = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"], flush=True)
if len(sys.argv) > 1:
    time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("network", ["host", "none"])
def test_torchrun_starts_every_rank_through_the_entry(
    make_attempt: MakeAttempt, network: str, needs_bwrap: None
) -> None:
    attempt = make_attempt(TWO_RANKS, ranks=2, level=1, network=network)

    record = attempt.run()

    assert record["kind"] == "ok", attempt.everything()
    assert [attempt.log(rank).split()[:4] for rank in (0, 1)] == [
        ["rank", "0", "of", "2"],
        ["rank", "1", "of", "2"],
    ]


@pytest.mark.parametrize("network", ["host", "none"])
def test_ranks_can_be_started_without_torchruns_agent(
    make_attempt: MakeAttempt, network: str, needs_bwrap: None
) -> None:
    attempt = make_attempt(TWO_RANKS, ranks=2, level=1, network=network, launcher="direct")

    record = attempt.run()

    assert record["kind"] == "ok", attempt.everything()
    assert [row["code"] for row in record["ranks"]] == [0, 0]
    assert attempt.log(1) == "rank 1 of 2 127.0.0.1\n"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "direct"])
@pytest.mark.code("F17")
def test_a_killed_rank_is_the_first_failure_and_its_siblings_are_not(
    make_attempt: MakeAttempt, level: int, launcher: str
) -> None:
    attempt = make_attempt(TWO_RANKS, ranks=2, level=level, launcher=launcher, args=["wait"])
    supervisor = attempt.start()
    attempt.wait_for_line("rank 0")
    attempt.wait_for_line("rank 1", rank=1)

    os.kill(pid_of_rank(supervisor.pid, 1), signal.SIGKILL)
    record = attempt.finish()

    assert record["kind"] == "signal", attempt.everything()
    assert record["first_failure"]["rank"] == 1
    assert record["first_failure"]["signal"] == signal.SIGKILL
    assert record["ranks"][0]["signal"] == signal.SIGTERM


@pytest.mark.slow
@pytest.mark.code("F17")
def test_peers_that_raise_because_a_rank_was_killed_are_not_the_first_failure(
    make_attempt: MakeAttempt, level: int
) -> None:
    attempt = make_attempt(
        """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100_000):
    dist.all_reduce(torch.ones(4))
    if step % 100 == 0:
        print("step", step, flush=True)
""",
        ranks=2,
        level=level,
    )
    supervisor = attempt.start()
    attempt.wait_for_line("step 100")

    os.kill(pid_of_rank(supervisor.pid, 1), signal.SIGKILL)
    record = attempt.finish()

    assert record["kind"] == "signal", attempt.everything()
    assert record["first_failure"]["rank"] == 1


@pytest.mark.slow
@pytest.mark.code("F16")
def test_killing_torchrun_leaves_no_rank_behind(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(TWO_RANKS, ranks=2, level=level, args=["wait"])
    supervisor = attempt.start()
    attempt.wait_for_line("rank 0")
    attempt.wait_for_line("rank 1", rank=1)
    everyone = descendants(supervisor.pid)

    os.kill(parent_of(pid_of_rank(supervisor.pid, 0)), signal.SIGKILL)
    record = attempt.finish()

    assert record["kind"] == "signal", attempt.everything()
    assert not any(Path(f"/proc/{pid}").exists() for pid in everyone)


@pytest.mark.slow
def test_a_stop_reaches_each_rank_itself_and_not_torchrun(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        """
import os, signal, sys, time
def save(*_):
    print("saving", os.environ["RANK"], flush=True)
    time.sleep(0.5)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(3600)
""",
        ranks=2,
        level=level,
    )
    attempt.start()
    attempt.wait_for_line("ready")
    attempt.wait_for_line("ready", rank=1)

    order_stop(attempt.folder, "preempt", 20)
    record = attempt.finish()

    assert record["kind"] == "preempted", attempt.everything()
    assert [row["code"] for row in record["ranks"]] == [0, 0]
    assert attempt.log(0).count("saving") == attempt.log(1).count("saving") == 1


@pytest.mark.slow
def test_a_stop_before_any_rank_runs_ends_the_sandbox_at_once(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(TWO_RANKS, ranks=2, level=level, args=["wait"])
    supervisor = attempt.start()
    wait_until(attempt.folder.sandbox.exists)

    order_stop(attempt.folder, "cancel", 20)

    assert supervisor.wait(PATIENCE_S) == 0
    assert attempt.record()["kind"] == "cancelled"


def pid_of_rank(supervisor: int, rank: int) -> int:
    """The youngest process that is this rank: bubblewrap carries no RANK where torchrun starts the ranks."""
    return max(pid for pid in descendants(supervisor) if rank_of(pid) == rank)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


SLOW_TO_SHUT_DOWN = """
import atexit, os, time
if "RANK" not in os.environ:
    atexit.register(time.sleep, 100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_of_which_only_torchrun_is_left_is_over(
    make_attempt: MakeAttempt, level: int, fails: bool
) -> None:
    script = "import os, time\ntime.sleep(1)\n"
    if fails:
        script += "if os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(3600)\n"
    attempt = make_attempt(script, ranks=2, level=level)
    (attempt.work / "sitecustomize.py").write_text(SLOW_TO_SHUT_DOWN)
    launch = read_record(attempt.folder.launch)
    assert launch is not None
    write_record(attempt.folder.launch, {**launch, "env": {"PYTHONPATH": str(attempt.work)}})

    record = attempt.run()

    assert record["kind"] == ("signal" if fails else "ok"), attempt.everything()
    codes = [(row["code"], row["signal"]) for row in record["ranks"]]
    assert codes == ([(None, signal.SIGTERM), (None, signal.SIGKILL)] if fails else [(0, None), (0, None)])
