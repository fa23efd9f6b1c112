"""A second server that is cut off while both sides live: its job stops there, and only then goes on elsewhere."""

import signal
from collections.abc import Iterator

import pytest

from tests.system.nodes import NodeServer, nodes_setting
from tests.system.server import Prepared, Server, alive, kill
from tests.system.test_nodes import COUNT

pytestmark = pytest.mark.slow

HOLD = "import time\nprint('holds', flush=True)\ntime.sleep(36000)\n"


@pytest.fixture(scope="module")
def head(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one CPU slot, which gives other servers short leases."""
    folder = tmp_path_factory.mktemp("head") / "berth"
    setting = {**nodes_setting(), "BERTH_NODE_LEASE_S": "10"}
    with Server.copy_of(prepared, folder, "cpu:1", setting).running() as server:
        yield server


@pytest.fixture(scope="module")
def second(head: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    with NodeServer(head, tmp_path_factory.mktemp("second") / "berth", "second", "cpu:1").joined() as node:
        yield node


@pytest.fixture
def counting(head: Server, second: NodeServer) -> Iterator[str]:
    """A job on the second server with a checkpoint, while the first one's only slot is free."""
    holder = head.submit(HOLD)
    head.wait_for_line(holder, "holds")
    job = head.submit(COUNT, args=["100000"], resume_args=["--resume"], grace_period_s=2)
    head.wait_until(lambda: head.get(f"/jobs/{job}/checkpoints")["results"])
    assert second.supervisors(job)
    head.post(f"/jobs/{holder}/cancel")
    head.wait_for_end(holder)
    yield job
    head.post(f"/jobs/{job}/cancel")
    head.wait_for_end(job)


def test_job_of_a_server_whose_port_hangs_stops_there_and_goes_on_here(head, second, counting):
    given_up, stopped = second.supervisors(counting), second.ray()
    kill(stopped, signal.SIGSTOP)
    try:
        head.wait_for_state(counting, "unknown")
        head.wait_for_line(counting, "began at", attempt=2)

        assert not alive(given_up)  # before the second attempt began
        ended = head.attempts(counting)[0]
        assert (ended["exit_kind"], "longer than its lease" in ended["exit_detail"]) == ("lost", True), ended
        assert int(head.log(counting, attempt=2).split("began at ")[1].split()[0]) >= 5
    finally:
        kill(stopped, signal.SIGCONT)
    second.wait_for_devices("ok")
    assert head.job(counting)["state"] == "running"
    assert len(head.attempts(counting)) == 2


def test_job_that_stopped_with_its_lease_is_queued_again_once_its_server_answers(head, second, counting):
    """The first server was gone itself, so that it never knew of a lease that ran out."""
    supervisors = second.supervisors(counting)
    links = head.service("links")
    kill(links, signal.SIGSTOP)
    try:
        head.wait_until(lambda: not alive(supervisors))
    finally:
        kill(links, signal.SIGCONT)

    head.wait_until(lambda: len(head.attempts(counting)) == 2)
    first = next(each for each in head.attempts(counting) if each["number"] == 1)
    assert first["exit_kind"] == "preempted"
    assert "the first server was silent" in first["exit_detail"]
