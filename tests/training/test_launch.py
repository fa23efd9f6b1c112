"""The warm launcher: ranks with torchrun's environment within milliseconds, and nobody left behind."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.started import PATIENCE_S
from training.launch import LaunchError, WarmLauncher, rank_environment, torchrun_command

TELL = """
import json, os, sys, torch
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MINE", "HOME_OF_CALLER"]
told = {name: os.environ.get(name) for name in names}
told |= {"argv": sys.argv[1:], "cwd": os.getcwd(), "name": __name__, "threads": torch.get_num_threads()}
print(json.dumps(told))
if "fail" in sys.argv and os.environ["RANK"] == "1":
    raise ValueError("as told")
if "wait" in sys.argv or "fail" in sys.argv:
    import time
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmLauncher]:
    made = WarmLauncher(socket_path=tmp_path_factory.mktemp("warm") / "s")
    yield made
    made.stop()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "tell.py"
    path.write_text(TELL)
    return path


@pytest.mark.slow
def test_ranks_get_torchruns_environment_but_not_the_launchers(
    launcher: WarmLauncher, script: Path, tmp_path: Path
) -> None:
    import json

    with (tmp_path / "output").open("wb") as file:
        ranks = launcher.start(
            script, ["a b", "c"], ranks=2, cwd=tmp_path, output=file,
            env={"MINE": "1", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert ranks.wait(PATIENCE_S) == [0, 0]

    told = sorted(
        (json.loads(line) for line in (tmp_path / "output").read_text().splitlines()), key=lambda t: t["RANK"]
    )
    assert told[1] == {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MINE": "1", "HOME_OF_CALLER": None, "argv": ["a b", "c"], "cwd": str(tmp_path), "name": "__main__",
        "threads": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_failing_rank_ends_the_others(launcher: WarmLauncher, script: Path, tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as file:
        ranks = launcher.start(script, ["fail"], ranks=2, cwd=tmp_path, output=file)

        assert ranks.wait(PATIENCE_S) == [-9, 1]
    assert "ValueError: as told" in (tmp_path / "output").read_text()


@pytest.mark.slow
def test_ranks_end_with_their_starter(launcher: WarmLauncher, script: Path, tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as file:
        ranks = launcher.start(script, ["wait"], ranks=2, cwd=tmp_path, output=file)
    with pytest.raises(TimeoutError):
        ranks.wait(0.05)

    ranks.kill()

    deadline = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() for pid in ranks.pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_launcher_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")

    with pytest.raises(LaunchError, match="did not start"):
        WarmLauncher(socket_path=tmp_path / "s").connect()


def test_torchrun_command_starts_our_entry_once(tmp_path: Path) -> None:
    command = torchrun_command(tmp_path / "t.py", ["--lr", "1"], ranks=4)

    assert command[command.index("--nproc-per-node") + 1] == "4"
    assert command[command.index("--max-restarts") + 1] == "0"
    assert command[-4:] == [command[-4], str(tmp_path / "t.py"), "--lr", "1"]
    assert command[-4].endswith("training/entry.py")


def test_ranks_differ_only_in_the_environment() -> None:
    first, second = rank_environment(0, 2, 4711), rank_environment(1, 2, 4711)

    assert {name for name in first if first[name] != second[name]} == {"RANK", "LOCAL_RANK", "ROLE_RANK"}
