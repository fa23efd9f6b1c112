"""An upgrade while jobs run: an earlier version's server is stopped, and this one goes on with its jobs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.server import REPOSITORY, Server
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.process]
# A version of the history with 13 migrations fewer, until there is a tag.
EARLIER = "375b700c"
PREPARE = "import sys, pathlib; from tests.system.server import prepare_home as p; print(p(pathlib.Path(sys.argv[1])))"
# Steps until a file appears, so that no clock decides what runs during the upgrade.
STEPS = """
import os, time
step = 0
while not os.path.exists(os.environ["BERTH_OUTPUT_DIR"] + "/ends"):
    step += 1
    print(f"step {step}/1000000 loss 0.5", flush=True)
    time.sleep(0.1)
"""


class EarlierServer(Server):
    """A server that runs from another tree."""

    tree = REPOSITORY

    def command(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.home / "up.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=self.tree,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The newest tag's tree, else that of ``EARLIER``."""
    tag = _git("describe", "--tags", "--abbrev=0").decode().strip()
    archive = _git("archive", "--format=tar", tag or EARLIER)
    if not archive:
        pytest.skip("this copy of the tree has no history")
    folder = tmp_path / "earlier"
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, check=False).stdout


@pytest.fixture
def earlier(tree: Path, tmp_path: Path) -> Iterator[EarlierServer]:
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, home],
        cwd=tree,
        env={**os.environ, "BERTH_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    server = EarlierServer(home, done.stdout.split()[-1], "cpu:2")
    server.tree = tree
    yield server
    server.clean_up()


@pytest.mark.timeout(900)
def test_no_job_is_lost_when_berth_is_upgraded_while_jobs_run(earlier: EarlierServer) -> None:
    earlier.start()
    during, after = (earlier.submit(STEPS, name=name) for name in ("during", "after"))
    waits = earlier.submit("print('came to an end')", name="waits")
    for job in (during, after):
        earlier.wait_for_line(job, "step 3/")
    ranks = earlier.ranks(after)
    assert earlier.job(waits)["state"] == "queued"

    earlier.stop()
    supervisors = earlier.supervisors(during)
    (earlier.folder(during) / "output" / "ends").touch()
    earlier.wait_until(lambda: not set(supervisors) & set(earlier.supervisors(during)))
    server = Server(earlier.home, earlier.token, "cpu:2").start()
    try:
        assert server.wait_for_end(during)["state"] == "succeeded"
        assert server.wait_for_end(waits)["state"] == "succeeded"
        assert (server.job(after)["state"], server.ranks(after)) == ("running", ranks)
        (earlier.folder(after) / "output" / "ends").touch()
        assert server.wait_for_end(after)["state"] == "succeeded"
        assert [len(server.attempts(job)) for job in (during, after, waits)] == [1, 1, 1]
        assert "came to an end" in server.log(waits)
        doctor = subprocess.run(
            [sys.executable, "manage.py", "doctor"],
            cwd=REPOSITORY,
            env=server.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert "No problems found." in doctor.stdout, doctor.stdout
    finally:
        server.clean_up()
