"""Runs whose node may not go on forever without a word from the first server."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.supervisor.linux.processes import boot_id, identify, is_alive
from orchestrator.supervisor.protocol.lease import clock_s, overdue_s, write_lease
from orchestrator.supervisor.protocol.records import write_record
from tests.supervisor.conftest import Attempt
from tests.waiting import wait_until

MakeAttempt = Callable[..., Attempt]
SAVES = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(3600)
"""
STAYS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    return tmp_path / "lease.json"


def grant(lease: Path, for_s: float) -> None:
    now = clock_s()
    write_lease(lease, granted_s=now, until_s=now + for_s)


def test_run_whose_lease_is_not_renewed_saves_and_stops(make_attempt: MakeAttempt, lease):
    attempt = make_attempt(SAVES, lease=str(lease), grace_s=600.0)
    grant(lease, 3600)
    attempt.start()
    attempt.wait_for_line("ready")

    grant(lease, 0.0)

    record = attempt.finish()
    assert (record["kind"], record["stop"]["reason"]) == ("preempted", "lease")
    assert (attempt.work / "saved").exists()


def test_run_goes_on_while_its_lease_is_renewed(make_attempt: MakeAttempt, lease):
    attempt = make_attempt("import time\nprint('ready', flush=True)\ntime.sleep(4)\n", lease=str(lease))
    grant(lease, 3600)
    attempt.start()
    attempt.wait_for_line("ready")
    grant(lease, 7200)

    assert attempt.finish()["kind"] == "ok"


def test_nothing_starts_after_the_lease_has_run_out(make_attempt: MakeAttempt, lease):
    attempt = make_attempt(SAVES, lease=str(lease))
    grant(lease, -1.0)

    assert attempt.run()["stop"]["reason"] == "lease"
    assert attempt.log() == ""


def test_lease_of_an_earlier_boot_is_none(lease):
    write_record(lease, {"boot_id": "another", "granted_s": clock_s(), "until_s": clock_s() + 3600})
    assert overdue_s(lease) == 0.0
    assert overdue_s(lease.with_name("missing")) == 0.0

    grant(lease, 3600)
    assert overdue_s(lease) is None


def test_older_lease_that_comes_late_changes_nothing(lease):
    write_lease(lease, granted_s=100.0, until_s=clock_s() + 3600)
    write_lease(lease, granted_s=99.0, until_s=clock_s() + 7200)

    assert overdue_s(lease) is None
    write_lease(lease, granted_s=101.0, until_s=clock_s() - 5)
    assert (overdue_s(lease) or 0) >= 5


def test_run_that_was_stopped_beyond_its_grace_gets_none(make_attempt: MakeAttempt, lease):
    """A server that was suspended wakes up when another attempt may run already."""
    attempt = make_attempt(STAYS, lease=str(lease), grace_s=600.0)
    grant(lease, 3600)
    supervisor = attempt.start()
    attempt.wait_for_line("ready")
    ranks = identify(supervisor.pid)
    supervisor.send_signal(signal.SIGSTOP)
    write_record(lease, {"boot_id": boot_id(), "granted_s": clock_s(), "until_s": clock_s() - 700})

    supervisor.send_signal(signal.SIGCONT)

    record = attempt.finish()
    assert record["stop"]["reason"] == "lease"
    wait_until(lambda: ranks is None or not is_alive(ranks))
