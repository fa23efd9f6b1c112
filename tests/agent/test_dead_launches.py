"""Launchers that are killed at every step: their job goes on at once, and nothing of theirs runs beside it."""

import fcntl
import os
import signal
import sys
import threading
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from orchestrator.agent.attempts import AttemptWatch
from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import engine_of, order_of
from orchestrator.models import Attempt, Job, JobState
from orchestrator.people import secrets
from orchestrator.supervisor.linux.processes import with_nonce
from orchestrator.supervisor.protocol.records import read_record
from tests.jobs.invariants import check_invariants
from tests.waiting import wait_until

# The killed process has a connection of its own.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("home")]

SCRIPT = b"import os; open(os.environ['BERTH_OUTPUT_DIR'] + '/ran', 'a').write('x')\n"
DEADLY_STEPS = [
    pytest.param("os.mkdir", "/checkpoints", id="before its folders"),
    pytest.param("os.rename", "launch.json", id="before the launch record"),
    pytest.param("subprocess.Popen", "supervisor", id="before the supervisor"),
]


@pytest.fixture
def placed(make_attempt, make_job, store_script) -> Callable[..., Attempt]:
    """An attempt that waits for its launch; keywords as those of ``make_job``."""
    return lambda **fields: make_attempt(make_job(bundle=store_script(SCRIPT), **fields))


def kill_at(event: str, text: str, act: Callable[[], object]) -> None:
    """Run ``act`` in a process of its own, which SIGKILLs itself just before the step that this audit event tells of."""
    pid = os.fork()
    if pid == 0:
        try:
            connection.connection = None  # that of the parent, which must stay open
            sys.addaudithook(
                lambda name, given: (
                    os.kill(os.getpid(), signal.SIGKILL) if name == event and text in str(given) else None
                )
            )
            act()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it got past the step"


class Secrets(UserDict[str, str]):
    """Tells of the moment at which they are written to the supervisor."""

    def keys(self) -> Any:
        sys.audit("berth.secrets")
        return super().keys()


def turn(attempt: Attempt) -> Job:
    """One turn of an agent that has just been started, and one more if checkpoints were still looked for."""
    watch = AttemptWatch(attempt)
    watch.check(Attempt.objects.select_related("job").get(pk=attempt.pk), timezone.now())
    if watch.keeper.thread is not None:  # an attempt ends in the turn after that
        watch.keeper.thread.join()
        current = Attempt.objects.select_related("job").get(pk=attempt.pk)
        if current.ended_at is None:
            watch.check(current, timezone.now())
    watch.close()
    return Job.objects.get(pk=attempt.job_id)


def ran(attempt: Attempt, home: Any) -> bool:
    output: Path = home.job(attempt.job_id).output
    return (output / "ran").exists()


@pytest.mark.code("F07")
def test_lock_of_a_launch_that_has_begun_is_never_seen_free(placed) -> None:
    attempt = placed()
    kill_at("fcntl.flock", "", lambda: launcher.start(attempt))

    assert not (launcher.folder_of(attempt).root / launcher.PREPARING).exists()
    assert not launcher.is_dead(attempt)


@pytest.mark.parametrize(("event", "text"), DEADLY_STEPS)
def test_killed_launch_is_retried_at_once_and_no_supervisor_comes_of_it(placed, home, event, text):
    attempt = placed()

    kill_at(event, text, lambda: launcher.start(attempt))
    job = turn(attempt)

    assert (job.state, job.launch_failures) == (JobState.QUEUED, 1)
    assert "cut short before the run began" in job.events.order_by("number")[job.event_count - 1].reason
    check_invariants()
    launcher.launch(attempt)  # a process that was taken for dead
    assert not launcher.folder_of(attempt).supervisor.exists()
    assert not ran(attempt, home)


@pytest.mark.code("F07")
@pytest.mark.parametrize(("event", "text"), DEADLY_STEPS)
def test_agent_that_dies_while_it_gives_a_launch_up_leaves_no_job_starting(placed, event, text):
    attempt = placed()
    kill_at(event, text, lambda: launcher.start(attempt))
    assert launcher.forestall(attempt, fact(Ended.LAUNCH_DIED)), "the last act of the first agent"

    job = turn(attempt)

    assert (job.state, job.launch_failures) == (JobState.QUEUED, 1)
    check_invariants()


@pytest.mark.code("F07")
def test_launcher_that_was_suspended_before_its_folder_does_nothing_beside_the_next_attempt(placed, home):
    attempt = placed()
    assert lifecycle.claim_launch(attempt, timezone.now())
    watch = AttemptWatch(attempt)
    watch.check(attempt, timezone.now())
    assert watch.unstarted_since is not None
    watch.unstarted_since -= 16
    watch.check(attempt, timezone.now())
    watch.close()
    assert Job.objects.get().state == JobState.QUEUED

    launcher.launch(attempt)

    folder = launcher.folder_of(attempt)
    assert not folder.launch.exists()
    assert not folder.supervisor.exists()
    assert not home.job(attempt.job_id).work.exists(), "the next attempt works there"


def test_supervisor_that_is_late_is_waited_for(placed):
    """The launcher has gone, and the process that it started holds the log that it was given."""
    attempt = placed()
    kill_at("subprocess.Popen", "supervisor", lambda: launcher.start(attempt))
    with launcher.folder_of(attempt).supervisor_log.open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_SH)

        assert turn(attempt).state == JobState.STARTING

    assert turn(attempt).state == JobState.QUEUED


def test_launch_that_fails_is_not_taken_for_a_dead_one(placed, home):
    """What failed is in the database before the lock is free."""
    attempt = placed()
    folder = home.job(attempt.job_id)
    folder.root.mkdir(parents=True)
    folder.checkpoints.write_text("in the way")
    seen: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            if launcher.is_dead(attempt):
                seen.append("dead")
        connection.close()

    looks = threading.Thread(target=look)
    looks.start()
    launcher.start(attempt)
    over.set()
    looks.join()

    assert seen == []
    assert Job.objects.get().reason.startswith("Could not prepare the job's folder:")


def test_run_of_a_launcher_that_died_before_it_gave_the_secrets_does_not_begin(placed, ada, home):
    secrets.keep(ada, "KEY", "value")
    attempt = placed(spec={"secrets": ["KEY"]})

    def launch() -> None:
        assert lifecycle.claim_launch(attempt, timezone.now())
        launcher.prepare(Job.objects.select_related("pool").get(pk=attempt.job_id), attempt)
        engine_of(attempt).start(order_of(attempt), Secrets())

    kill_at("berth.secrets", "", launch)
    folder = launcher.folder_of(attempt)
    wait_until(folder.exit.exists)

    record = read_record(folder.exit) or {}
    assert record["kind"] == "infra"
    assert "before it had handed over the secrets" in str(record["detail"])
    assert not ran(attempt, home)
    job = turn(attempt)
    assert (job.state, job.launch_failures) == (JobState.QUEUED, 1)
    assert not with_nonce(attempt.nonce)
    check_invariants()
