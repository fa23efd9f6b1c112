"""Jobs on a second server, which joined the first one through Ray."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.jobs.wheels import make_wheel
from tests.system.nodes import NodeServer, nodes_setting
from tests.system.server import REPOSITORY, Server, alive, kill

pytestmark = pytest.mark.slow

HELLO = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
# Rank 0 counts, keeps its count in a zip as torch.save does, and goes on from there; the others wait for it.
COUNT = """
import os, pathlib, sys, time, zipfile
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "count.pt")
over = pathlib.Path(os.environ["BERTH_OUTPUT_DIR"], "over")
while os.environ["RANK"] != "0":
    if over.exists():
        sys.exit()
    time.sleep(0.1)
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
over.touch()
"""


@pytest.fixture(scope="module")
def second(head: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    """A server with two CPU slots that joined it: a job of two ranks fits nowhere else."""
    with NodeServer(head, tmp_path_factory.mktemp("second") / "berth", "second", "cpu:2").joined() as node:
        yield node


def test_job_that_fits_only_the_second_server_runs_there_with_its_log_and_end_here(head, second):
    job = head.submit(HELLO, gpus=2)

    ended = head.wait_for_end(job)

    assert ended["state"] == "succeeded", (ended, head.logs())
    assert [head.log(job, rank=rank) for rank in (0, 1)] == ["rank 0 of 2\n", "rank 1 of 2\n"]
    assert (second.folder(job) / "supervisor.json").exists()


def test_job_whose_processes_are_killed_there_goes_on_from_its_checkpoint(head, second):
    job = head.submit(COUNT, gpus=2, args=["30"], resume_args=["--resume"])
    head.wait_until(lambda: head.get(f"/jobs/{job}/checkpoints")["results"])

    kill(second.members(job))

    ended = head.wait_for_end(job)
    assert ended["state"] == "succeeded", (ended, second.logs())
    assert int(head.log(job, attempt=2).split("began at ")[1].split()[0]) >= 5
    assert (second.folder(job, 2) / "exit.json").exists()


@pytest.mark.parametrize("part", ["the port", "Ray there", "the link", "Ray here"])
def test_job_goes_on_while_a_part_between_the_servers_is_killed(head, second, part):
    job = head.submit(COUNT, gpus=2, args=["60"])
    head.wait_for_line(job, "step 3 ")

    match part:
        case "the port":
            kill(second.port())
        case "Ray there":
            kill(second.ray())
        case "the link":
            head.kill_service("links")
        case "Ray here":
            head.kill_service("ray", tree=True)

    ended = head.wait_for_end(job)
    assert (ended["state"], len(head.attempts(job))) == ("succeeded", 1), (ended, second.logs())
    assert head.log(job).count("began at") == 1
    assert head.log(job).splitlines()[-1].startswith("step 60 ")
    second.wait_for_devices("ok")


def test_first_server_starts_again_while_a_node_still_looks_for_it(head, second):
    job = head.submit(COUNT, gpus=2, args=["150"])
    head.wait_for_line(job, "step 3 ")

    head.kill_everything()
    assert second.ray()
    head.start()

    ended = head.wait_for_end(job)
    assert (ended["state"], len(head.attempts(job))) == ("succeeded", 1), (ended, second.logs())
    second.wait_for_devices("ok")


def test_silent_server_gets_no_job_and_its_own_is_followed_again_when_it_answers(head, second):
    job = head.submit(COUNT, gpus=2, args=["400"])
    head.wait_for_line(job, "step 3 ")

    stopped = second.ray()
    kill(stopped, signal.SIGSTOP)
    try:
        head.wait_for_state(job, "unknown")
        second.wait_for_devices("silent")
        waiting = head.submit(HELLO, gpus=2)
        assert head.job(waiting)["state"] == "queued"
    finally:
        kill(stopped, signal.SIGCONT)

    head.wait_for_state(job, "running")
    assert len(head.attempts(job)) == 1
    head.post(f"/jobs/{job}/cancel")
    assert head.wait_for_end(waiting)["state"] == "succeeded"


def test_job_of_a_server_that_was_given_up_runs_once_when_it_comes_back(head, second):
    job = head.submit(COUNT, gpus=2, args=["600"], resume_args=["--resume"])
    head.wait_until(lambda: head.get(f"/jobs/{job}/checkpoints")["results"])
    given_up = second.supervisors(job)
    stopped = [*second.ray(), *second.members(job), *given_up]
    kill(stopped, signal.SIGSTOP)
    try:
        head.wait_for_state(job, "unknown")
        assert head.command("node", "leave", second.name).wait() == 1  # it may still run there
        assert head.command("node", "leave", second.name, "--lost").wait() == 0
        head.wait_until(lambda: head.attempts(job)[0]["exit_kind"] == "lost")
    finally:
        kill(stopped, signal.SIGCONT)

    head.wait_for_line(job, "began at", attempt=2)

    assert not alive(given_up)
    head.post(f"/jobs/{job}/cancel")
    head.wait_for_end(job)


def test_job_with_packages_runs_on_another_server_once_these_are_built_there(make_server, tmp_path):
    make_wheel(tmp_path / "wheels", "tinylib")
    wheels = {"BERTH_WHEELS": str(tmp_path / "wheels")}
    first = make_server("cpu:1", {**nodes_setting(), **wheels}).start()
    other = NodeServer(first, tmp_path / "other" / "berth", "other", "cpu:2")
    other.environment |= wheels
    with other.joined():
        job = first.submit(
            "import os, tinylib, torch\nprint(os.environ['RANK'], tinylib.__version__)\n",
            gpus=2,  # which the first server does not have
            with_packages=["tinylib"],
        )

        ended = first.wait_for_end(job)

        assert ended["state"] == "succeeded", (first.reasons(job), first.log(job), other.logs())
        assert [first.log(job, rank=rank) for rank in (0, 1)] == ["0 1.0\n", "1 1.0\n"]
        assert list(other.state.glob("environments/built/*/lib/python*/site-packages/tinylib.py"))


def test_server_runs_its_own_jobs_where_others_cannot_join_it(make_server):
    setting = nodes_setting()
    address, _, port = setting["BERTH_NODES"].rpartition(":")
    with socket.create_server((address, int(port))):
        server = make_server("cpu:1", setting).start()

        assert server.wait_for_end(server.submit("print('on')\n"))["state"] == "succeeded"
        server.wait_until(lambda: "ray ended" in (server.home / "up.log").read_text())


def test_server_with_a_wrong_token_is_refused_with_a_sentence(head, second, tmp_path):
    token = tmp_path / "token"
    token.write_text("f" * 64)
    address = head.environment["BERTH_NODES"]
    command = [
        "node",
        "join",
        address,
        "--token-file",
        str(token),
        "--name",
        "third",
        "--address",
        "127.0.0.1",
    ]

    refused = subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=REPOSITORY,
        env={**os.environ, "BERTH_HOME": str(tmp_path / "berth"), "BERTH_DEVICES": "cpu:1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert refused.returncode == 1
    assert f"{address} refuses this token. Copy the file again" in refused.stderr
    assert "Traceback" not in refused.stderr
