"""A rank that stands still is named and ended; ranks that wait for it are not blamed."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.conftest import Lines
from tests.training.started import PATIENCE_S
from training.launch import WarmLauncher
from training.report import Reporter
from training.watch.hang import EXIT_HANG, Beat, Beats, HangWatch, describe_hang, find_stuck

REPOSITORY = Path(__file__).parents[2]


def beat(count: int, moved_s: float, alive_s: float = 100.0) -> Beat:
    return Beat(pid=1, count=count, moved_s=moved_s, alive_s=alive_s)


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        ([beat(9, 99), beat(8, 10)], None),  # rank 0 still gets on
        ([beat(9, 20), beat(8, 10)], [1]),  # rank 0 waits for rank 1
        ([beat(8, 20), beat(9, 10), beat(9, 12)], [0]),
        ([Beat(1, 9, 20, 100, True), beat(9, 20)], [1]),  # one waits in a collective, the other does not come
        ([beat(9, 20), beat(9, 10)], []),  # both wait for something else
        ([beat(9, 10), beat(9, 10, alive_s=50)], [1]),  # stopped as a whole
        ([beat(9, 20)], [0]),
        ([beat(9, 20), beat(0, 0)], None),  # has not begun: it may be compiling
        ([beat(9, 20), Beat(0, 0, 0, 0)], None),
    ],
)
def test_f20_f21_rank_that_the_others_wait_for_is_found(
    beats: list[Beat], expected: list[int] | None
) -> None:
    assert find_stuck(beats, limit_s=60, now_s=100.0) == expected


def test_hang_limit_adapts_to_the_training(reporter: Reporter) -> None:
    watch = HangWatch(reporter, end=lambda code: None, world_size=1, rank=0)
    for number in range(10):
        reporter.heartbeat()
        watch.look(1000.0 + 20 * number)
        time.sleep(0.001)

    assert watch.limit_s == 200
    watch.stop()


def test_hanging_single_rank_is_ended(
    reporter: Reporter, lines: Lines, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    watch = HangWatch(reporter, end=ended.append, world_size=1, rank=0)
    reporter.heartbeat()
    watch.look(1000.0)
    watch.look(1059.0)
    assert not ended

    watch.look(1061.0)

    assert ended == [EXIT_HANG]
    assert "Rank 0 has made no progress for 61 s." in capfd.readouterr().err
    assert next(line["ranks"] for line in lines() if line.get("event") == "hang") == "0"
    watch.stop()


def test_hang_message_names_stuck_and_waiting_ranks() -> None:
    beats = [beat(9, 38), beat(9, 30), beat(8, 10)]

    assert describe_hang(beats, [2], 100.0) == (
        "Rank 2 has made no progress for 62 s, and 2 others wait. The stacks are in the logs of the ranks."
    )
    assert "all are at the same place" in describe_hang(beats, [], 100.0)
    assert "was stopped" in describe_hang([beat(1, 10), beat(1, 10, 20)], [1], 100.0)


MAP = """
import sys, time
from training.watch.hang import Beats

beats = Beats(int(sys.argv[1]), 2)
print([beat.pid for beat in beats.read()], flush=True)
time.sleep(600)
"""


def test_f20_killed_ranks_leave_no_temporary_files(
    start_python: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    ranks, told = [], []
    for rank in range(2):
        ranks.append(start_python(MAP, rank, TMPDIR=str(folder)))
        assert ranks[-1].stdout is not None
        told.append(json.loads(ranks[-1].stdout.readline()))

    for process in ranks:
        process.kill()
        process.wait()

    assert told == [[ranks[0].pid, 0], [each.pid for each in ranks]]  # both wrote into the same memory
    assert list(folder.iterdir()) == []


def test_ending_training_keeps_the_next_trainings_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = Beats(0, 2)
    next(tmp_path.glob("berth-beats-*")).unlink()  # as another rank does that finds all of them there
    following = Beats(1, 2)

    before.close()

    assert len(list(tmp_path.glob("berth-beats-*"))) == 1
    following.close()
    assert not list(tmp_path.glob("berth-beats-*"))


STUCK = """
import os, signal, sys, time
import torch
from torch import distributed
from training.watch.hang import HangWatch
from training.report import default_reporter

distributed.init_process_group("gloo")
watch = HangWatch(least_s=5.0, look_every_s=0.2)
watch.start()
rank = distributed.get_rank()
for step in range(10_000):
    default_reporter().heartbeat()
    if rank == 1 and step == 300:
        if sys.argv[1] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)
    time.sleep(0.002)
    distributed.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "skip"])
def test_f20_f21_stopped_or_stuck_rank_is_named_and_killed(
    how: str, launcher: WarmLauncher, tmp_path: Path
) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    (tmp_path / "errors").mkdir()
    (tmp_path / "logs").mkdir()
    environment = {
        **os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "BERTH_METRICS_FILE": "metrics",
        "BERTH_ATTEMPT_FOLDER": str(tmp_path),
    }  # fmt: skip

    ranks = launcher.start(tmp_path / "stuck.py", [how], ranks=2, cwd=tmp_path, env=environment)
    codes = ranks.wait(PATIENCE_S)

    assert codes[1] == -9
    log = (tmp_path / "logs" / "rank0.log").read_text()
    assert "Rank 1 has made no progress" in log
    assert "all_reduce" in log  # where rank 0 waited
    assert "RankHangs: Rank 1 has made no progress" in (tmp_path / "errors" / "rank1.json").read_text()
    assert '"ranks":"1"' in (tmp_path / "metrics").read_text()
