"""Whole attempts inside the files of a container image, under a real supervisor."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import training
from orchestrator.supervisor.linux.processes import with_nonce
from orchestrator.supervisor.protocol.orders import order_stop
from tests.images import OWN_PATH, make_root
from tests.supervisor.conftest import Attempt
from tests.waiting import wait_until

MakeAttempt = Callable[..., Attempt]
LIBRARY = Path(training.__file__).parent
STARTS_TWO = """
import os, subprocess, sys
words = sys.argv[1:]
begin = next(at for at, word in enumerate(words) if word.endswith("entry.py"))
ranks = [subprocess.Popen([sys.executable, "-u", *words[begin:]],
                          env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.fixture(params=[1, 2], ids=["level1", "level2"])
def level(request: pytest.FixtureRequest) -> int:
    request.getfixturevalue("needs_bwrap" if request.param == 1 else "needs_groups")
    return int(request.param)


@pytest.fixture(scope="module")
def plain_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("plain") / "rootfs")


@pytest.fixture(scope="module")
def python_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("python") / "rootfs", python=True, torch=STARTS_TWO)


def in_image(make_attempt: MakeAttempt, root: Path, code: str = "", /, **fields: object) -> Attempt:
    image = {"root": str(root), **fields.pop("image", {})}  # type: ignore[dict-item]
    env = {"PATH": OWN_PATH, **fields.pop("env", {})}  # type: ignore[dict-item]
    return make_attempt(code, python="/usr/bin/python3", image=image, env=env, **fields)


def command(make_attempt: MakeAttempt, root: Path, *words: str, **fields: object) -> Attempt:
    return in_image(make_attempt, root, starts_as="command", script=words[0], args=list(words[1:]), **fields)


def test_command_runs_in_the_files_of_its_image_and_its_log_exit_and_checkpoints_are_berths(
    make_attempt: MakeAttempt, level: int, plain_root: Path
) -> None:
    attempt = command(
        make_attempt,
        plain_root,
        *("sh", "-c", "cat /etc/os-release; echo 7 > $BERTH_CHECKPOINT_DIR/a.pt; echo no 1>&2; exit 3"),
        level=level,
    )
    checkpoints = attempt.work.parent / "checkpoints"
    launch = json.loads(attempt.folder.launch.read_text())
    launch["env"]["BERTH_CHECKPOINT_DIR"] = str(checkpoints)
    attempt.folder.launch.write_text(json.dumps(launch))

    record = attempt.run()

    assert (record["kind"], attempt.log()) == ("user_error", "NAME=tiny\nno\n"), attempt.everything()
    assert record["ranks"][0]["code"] == 3
    assert (checkpoints / "a.pt").read_text() == "7\n"


def test_run_sees_nothing_of_the_host_and_can_write_only_where_it_may(
    make_attempt: MakeAttempt, level: int, plain_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "home/secret").parent.mkdir()
    (tmp_path / "home/secret").write_text("hunter2")
    own = ["/tmp/x", "/run/x", "/var/tmp/x"]  # noqa: S108 -- of the sandbox
    tries = ["/x", "/usr/x", "/etc/x", "/var/x", "/home/x", *own, "$HOME/x"]
    words = "; ".join(f"touch {path} 2>/dev/null && echo {path}" for path in tries)

    attempt = command(
        make_attempt,
        plain_root,
        *("sh", "-c", f"{words}; cat {tmp_path}/home/secret; ls -A /home /srv /opt"),
        level=level,
    )
    attempt.run()

    said = attempt.log()
    assert said.splitlines()[:4] == [*own, f"{attempt.work}/x"], said
    assert "hunter2" not in said
    assert not (plain_root / "tmp/x").exists()
    assert said.endswith("\n".join(map(_listed, ["/home", "/opt", "/srv"]))), said


def _listed(folder: str) -> str:
    """What ``ls`` says of a folder of the image; the library that Berth brings along may lie below it."""
    own = {"tools"} if folder == "/opt" else set()
    if LIBRARY.is_relative_to(folder):
        own.add(LIBRARY.relative_to(folder).parts[0])
    return "".join(f"{line}\n" for line in [f"{folder}:", *sorted(own)])


def test_data_appears_at_its_own_path_also_where_the_image_has_a_folder_above_it(
    make_attempt: MakeAttempt, level: int, plain_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a.csv").write_text("1,2\n")
    (tmp_path / "data").symlink_to("real")
    (plain_root / "srv/more").mkdir(exist_ok=True)
    (plain_root / "srv/more/own").write_text("")

    attempt = command(
        make_attempt,
        plain_root,
        *(
            "sh",
            "-c",
            f"cat {tmp_path}/data/a.csv /srv/more/a/a.csv; ls /srv/more; touch /srv/more/a/b || true",
        ),
        level=level,
        read_only=[str(tmp_path / "data")],
        image={"files": {"/srv/more/a": str(tmp_path / "real")}},
    )
    attempt.run()

    assert attempt.log().startswith("1,2\n1,2\na\nown\ntouch:"), attempt.everything()


def test_home_of_the_service_stays_hidden_in_data_above_it_but_not_what_the_job_has_there(
    make_attempt: MakeAttempt, level: int, plain_root: Path, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    (users / "berth/.ssh").mkdir(parents=True)
    (users / "berth/.ssh/id").write_text("hunter2")
    (users / "berth/shared").mkdir()
    (users / "berth/shared/a.csv").write_text("1,2\n")
    (users / "ada").mkdir()
    (users / "ada/b.csv").write_text("3,4\n")
    (tmp_path / "link").symlink_to(users)

    words = f"cat {users}/ada/b.csv {users}/berth/shared/a.csv; cat {tmp_path}/link/berth/.ssh/id {users}/berth/.ssh/id"
    attempt = command(
        make_attempt,
        plain_root,
        *("sh", "-c", f"{words}; echo x > {users}/berth/x; ls {users}/berth"),
        level=level,
        read_only=[str(tmp_path / "link"), str(users / "berth/shared")],
    )
    attempt.start(HOME=str(users / "berth"))
    attempt.finish()

    said = attempt.log()
    assert said.startswith("3,4\n1,2\n"), attempt.everything()
    assert "hunter2" not in said
    assert not (users / "berth/x").exists()


def test_data_in_shared_memory_is_there_in_an_image(
    make_attempt: MakeAttempt, level: int, plain_root: Path
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder, "a.csv").write_text("1,2\n")

        attempt = command(
            make_attempt,
            plain_root,
            *("sh", "-c", f"cat {folder}/a.csv; touch /dev/shm/own && echo written"),
            level=level,
            read_only=[folder],
        )
        attempt.run()

    assert attempt.log() == "1,2\nwritten\n", attempt.everything()


def test_variables_of_the_loader_reach_the_run_and_no_program_of_the_host(
    make_attempt: MakeAttempt, level: int, plain_root: Path
) -> None:
    broken = {"LD_PRELOAD": "/etc/os-release"}  # of which every program of the host would complain
    attempt = command(
        make_attempt,
        plain_root,
        *("sh", "-c", "echo $LD_LIBRARY_PATH:$MADE_BY"),
        level=level,
        env={"MADE_BY": "image"},
        image={"loader": {"LD_LIBRARY_PATH": "/opt/lib", **broken}},
    )
    attempt.run()

    assert attempt.log().splitlines()[-1] == "/opt/lib:image"
    assert "bwrap" not in attempt.log()


def test_script_of_the_upload_runs_without_having_been_marked_executable(
    make_attempt: MakeAttempt, level: int, plain_root: Path
) -> None:
    attempt = command(make_attempt, plain_root, "./go.sh", "a b", level=level)
    (attempt.work / "go.sh").write_text('#!/bin/sh\necho "got $1"\n')

    assert attempt.run()["kind"] == "ok", attempt.everything()
    assert attempt.log() == "got a b\n"


def test_python_of_the_image_runs_a_script_with_the_variables_of_its_rank(
    make_attempt: MakeAttempt, level: int, python_root: Path
) -> None:
    script = "import os, sys\nprint(sys.executable, os.environ['RANK'], sys.argv[1:], os.path.exists('/etc/hostname'))"
    attempt = in_image(make_attempt, python_root, script, args=["--lr", "1"], level=level)

    assert attempt.run()["kind"] == "ok", attempt.everything()
    assert attempt.log() == "/usr/bin/python3 0 ['--lr', '1'] False\n"


def test_exception_of_a_script_in_an_image_is_told_as_any(
    make_attempt: MakeAttempt, level: int, python_root: Path
) -> None:
    attempt = in_image(make_attempt, python_root, "raise ValueError('no such column')", level=level)

    record = attempt.run()

    assert record["kind"] == "user_error"
    assert "no such column" in record["detail"]


def test_several_ranks_are_started_by_the_torchrun_of_the_image(
    make_attempt: MakeAttempt, level: int, python_root: Path
) -> None:
    script = "import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'])"
    attempt = in_image(make_attempt, python_root, script, ranks=2, level=level)

    assert attempt.run()["kind"] == "ok", attempt.everything()
    assert [attempt.log(0), attempt.log(1)] == ["0 2\n", "1 2\n"]


def test_stopped_command_of_an_image_gets_its_signal_and_leaves_nothing(
    make_attempt: MakeAttempt, level: int, plain_root: Path
) -> None:
    attempt = command(
        make_attempt,
        plain_root,
        *("sh", "-c", "trap 'echo saved; exit 0' TERM; echo ready; while true; do sleep 0.1; done"),
        level=level,
    )
    attempt.start()
    attempt.wait_for_line("ready")
    order_stop(attempt.folder, reason="cancel", grace_s=30.0)

    attempt.finish()

    assert "saved" in attempt.log()
    wait_until(lambda: not with_nonce(attempt.nonce), 30.0, attempt.everything)


def test_sandbox_that_cannot_be_made_is_not_the_commands_failure(
    make_attempt: MakeAttempt, level: int, plain_root: Path, tmp_path: Path
) -> None:
    attempt = command(
        make_attempt, plain_root, "sh", "-c", "echo", level=level, read_only=[str(tmp_path / "none")]
    )

    record = attempt.run()

    assert record["kind"] == "infra", record
    assert "bwrap: " in record["detail"]


@pytest.mark.parametrize("words", [("sh", "-c", "echo 'bwrap: no'; echo more; exit 1"), ("nothing",)])
def test_command_that_fails_itself_in_an_image_is_the_users_failure(
    make_attempt: MakeAttempt, level: int, plain_root: Path, words: tuple[str, ...]
) -> None:
    record = command(make_attempt, plain_root, *words, level=level).run()

    assert record["kind"] == "user_error", record


def test_image_without_a_sandbox_is_refused(make_attempt: MakeAttempt, plain_root: Path) -> None:
    record = command(make_attempt, plain_root, "sh", "-c", "echo", level=0).run()

    assert record["kind"] == "infra"
    assert "an image needs bubblewrap" in record["detail"]
