"""The agent: from what folders show to transitions, and what it sweeps up."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from orchestrator.agent import loop, tasks
from orchestrator.agent.attempts import UNANSWERED_S, AttemptWatch
from orchestrator.agent.checkpoints import CheckpointKeeper
from orchestrator.agent.lock import AgentRunning
from orchestrator.agent.loop import Loop
from orchestrator.agent.sweeps import Sweeper, clean
from orchestrator.facts.events import Happened
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.progress import is_silent
from orchestrator.models import (
    Attempt,
    AttemptState,
    Checkpoint,
    Device,
    Errand,
    ExitKind,
    Health,
    IdempotencyKey,
    Job,
    JobState,
    Lease,
    Occasion,
    Outbox,
    StopReason,
)
from orchestrator.people import secrets
from orchestrator.people.notices.events import occasion_of
from orchestrator.store.logs.chunks import TAIL_BYTES
from orchestrator.supervisor.linux.processes import environ
from orchestrator.supervisor.protocol.records import read_record, write_record
from tests.jobs.folders import living, make_folder, write_exit, write_identity
from tests.jobs.invariants import check_invariants
from tests.jobs.races import race
from tests.waiting import PATIENCE_S, wait_until

# Threads of the agent have connections of their own.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("home")]


def check_until(watch: AttemptWatch, done: Callable[[Job], bool]) -> Job:
    """Turns of the agent for one attempt, until its job is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        attempt = Attempt.objects.select_related("job").get(pk=watch.attempt.pk)
        if done(attempt.job):
            return attempt.job
        assert time.monotonic() < deadline, attempt.job.state
        watch.check(attempt, timezone.now())


def check_once(watch: AttemptWatch) -> Job:
    attempt = Attempt.objects.select_related("job").get(pk=watch.attempt.pk)
    watch.check(attempt, timezone.now())
    return Job.objects.get(pk=attempt.job_id)


@pytest.fixture
def watch_of() -> Iterator[Callable[[Attempt], AttemptWatch]]:
    """Follows an attempt; no thread of it outlives the test."""
    made: list[AttemptWatch] = []

    def make(attempt: Attempt) -> AttemptWatch:
        made.append(AttemptWatch(attempt))
        return made[-1]

    yield make
    for watch in made:
        watch.close()
        if watch.keeper.thread is not None:
            watch.keeper.thread.join()


def ended(job: Job) -> bool:
    return job.state not in {JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.UNKNOWN}


def out_of_sight(job: Job) -> bool:
    return job.state == JobState.UNKNOWN


def write_checkpoint(attempt: Attempt, home: Any, text: str = "step") -> None:
    path: Path = home.job(attempt.job_id).checkpoints / "last.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", text * 100)


# --- what folders show


def test_an_exit_record_ends_the_attempt_with_all_it_says(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    write_exit(
        attempt,
        "user_error",
        detail="ValueError: no",
        ranks=[{"rank": 0, "code": 1}],
        first_failure={"rank": 0, "exception": "ValueError"},
        peak_memory_bytes=123,
        dropped_bytes={"0": 5, "1": 6},
    )
    make_folder(attempt).log(0).write_text("one\ntwo\n")

    job = check_until(watch_of(attempt), ended)

    attempt.refresh_from_db()
    assert (job.state, job.exit_kind, job.seconds_run) == (JobState.FAILED, "user_error", 3.0)
    assert (attempt.kind, attempt.exit_detail, attempt.peak_memory_bytes) == (
        "user_error",
        "ValueError: no",
        123,
    )
    assert (attempt.first_failure["exception"], attempt.dropped_log_bytes) == ("ValueError", 11)
    assert attempt.log_tail.splitlines() == ["one", "two"]
    check_invariants()


def test_lines_kept_of_a_failed_log_have_no_values_of_secrets(ada, make_job, make_attempt, watch_of):
    secrets.keep(ada, "API_KEY", "sk-very/quiet")
    attempt = make_attempt(make_job(ada, spec={"secrets": ["API_KEY"]}), state=JobState.RUNNING)
    write_exit(attempt, "user_error")
    log = make_folder(attempt).log(0)
    log.write_text("key sk-very/quiet\nGET /?key=sk-very%2Fquiet\n")

    check_until(watch_of(attempt), ended)

    attempt.refresh_from_db()
    assert attempt.log_tail.splitlines() == ["key ***", "GET /?key=***"]
    assert "sk-very/quiet" in log.read_text()


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("sk-very-quiet" + "x" * (TAIL_BYTES - 6), "***x"),
        ("x" * (16_380) + "sk-very-quiet" + "x" * 20_000, "x" * 16_380 + "***x"),
    ],
    ids=["cut at its beginning", "split for readers"],
)
def test_a_secret_within_a_very_long_line_is_hidden(line, kept, ada, make_job, make_attempt, watch_of):
    secrets.keep(ada, "API_KEY", "sk-very-quiet")
    attempt = make_attempt(make_job(ada, spec={"secrets": ["API_KEY"]}), state=JobState.RUNNING)
    write_exit(attempt, "user_error")
    make_folder(attempt).log(0).write_text(line)

    check_until(watch_of(attempt), ended)

    attempt.refresh_from_db()
    assert attempt.log_tail.replace("\n", "").startswith(kept)
    assert "quiet" not in attempt.log_tail


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_no_lines_are_kept_where_a_secret_of_the_run_is_no_longer_known(
    change, ada, make_job, make_attempt, watch_of
):
    secrets.keep(ada, "API_KEY", "sk-very-quiet")
    attempt = make_attempt(make_job(ada, spec={"secrets": ["API_KEY"]}), state=JobState.RUNNING)
    if change == "replaced":
        secrets.keep(ada, "API_KEY", "another-value")
    else:
        secrets.forget(ada, "API_KEY")
    write_exit(attempt, "user_error")
    make_folder(attempt).log(0).write_text("key sk-very-quiet\n")

    check_until(watch_of(attempt), ended)

    attempt.refresh_from_db()
    assert attempt.log_tail == ""


def test_an_attempt_ends_without_the_lines_that_cannot_be_read(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    attempt.followed = {"stdout": "as another version might count"}
    attempt.save()
    write_exit(attempt, "ok")
    make_folder(attempt).log(0).write_text("step 1 loss 0.5\n")

    job = check_until(watch_of(attempt), ended)

    assert job.state == JobState.SUCCEEDED
    assert [each.reason for each in job.events.of(Happened.END_UNREAD)] == [
        "Berth failed to read what the run wrote last, so metrics may be missing; its log is whole. "
        "The operator finds why in the agent's log."
    ]


def test_a_turn_that_began_before_the_attempt_does_not_end_it_before_its_begin(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    write_exit(attempt, "ok")
    watch = watch_of(attempt)

    began = attempt.started_at - timedelta(seconds=2)
    watch.check(attempt, began)
    assert watch.keeper.thread is not None
    watch.keeper.thread.join()  # while it looks for checkpoints the attempt waits for another turn
    attempt.refresh_from_db()
    if attempt.ended_at is None:
        watch.check(attempt, began)

    attempt.refresh_from_db()
    assert attempt.ended_at == attempt.started_at


def test_what_a_script_saved_when_it_was_stopped_is_kept(make_attempt, watch_of, home):
    attempt = make_attempt(state=JobState.STOPPING)
    write_identity(attempt, alive_for_s=10)
    path = home.job(attempt.job_id).checkpoints / "weights.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("not a zip, so only its writer's end proves it whole")
    write_exit(attempt, "preempted", ranks=[{"rank": 0, "code": 0, "signal": None, "finished": True}])

    check_until(watch_of(attempt), ended)

    assert attempt.job.checkpoints.count() == 1


def test_what_an_exception_says_is_kept_though_no_database_could(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    write_exit(attempt, "user_error", detail="bad \ud800 \0 text", first_failure={"message": "\udfff\0"})

    check_until(watch_of(attempt), ended)

    attempt.refresh_from_db()
    assert attempt.exit_detail == "bad ? \ufffd text"
    assert attempt.first_failure == {"message": "?\ufffd"}


@pytest.mark.code("F39")
def test_exit_record_of_another_attempt_is_ignored(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    write_exit(attempt, "ok", nonce="another")

    assert check_once(watch_of(attempt)).state == JobState.RUNNING


@pytest.mark.code("F08")
def test_live_supervisor_that_was_never_recorded_makes_the_job_running(make_attempt, open_errands, watch_of):
    attempt = make_attempt()
    lifecycle.claim_launch(attempt, timezone.now())

    with living(attempt):
        assert check_once(watch_of(attempt)).state == JobState.RUNNING

    assert open_errands() == []


@pytest.mark.code("F15")
def test_silent_supervisor_fences_its_devices_until_its_next_heartbeat(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    watch = watch_of(attempt)
    with living(attempt, silent_for_s=31):
        assert check_until(watch, out_of_sight).state == JobState.UNKNOWN
        count = check_once(watch).event_count  # looking again writes nothing
        assert count == 4
    assert Device.objects.get().health == Health.FENCED

    with living(attempt):
        job = check_once(watch)

    assert (job.state, job.attempt_count, Device.objects.get().health) == (JobState.RUNNING, 1, Health.OK)
    check_invariants()


def test_one_call_that_nobody_answers_says_nothing_about_the_run(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    watch = watch_of(attempt)
    with living(attempt, silent_for_s=31):
        assert check_once(watch).state == JobState.RUNNING
    with living(attempt):
        assert check_once(watch).state == JobState.RUNNING
    with living(attempt, silent_for_s=31):
        assert check_once(watch).state == JobState.RUNNING, "an answer came between the two"
        watch.unanswered_since -= UNANSWERED_S

        assert check_once(watch).state == JobState.UNKNOWN


@pytest.mark.parametrize(
    ("silent_s", "fields", "is_told"),
    [
        (599, {}, False),
        (601, {}, True),
        (601, {"step": None}, False),  # it never told any
        (601, {"steps_per_s": 1 / 60}, False),  # a step takes a minute
        (1_201, {"steps_per_s": 1 / 60}, True),
    ],
)
def test_run_that_stops_reporting_steps_gets_one_warning(make_attempt, watch_of, silent_s, fields, is_told):
    attempt = make_attempt(state=JobState.RUNNING)
    long_ago, last = timezone.now() - timedelta(days=1), timezone.now() - timedelta(seconds=silent_s)
    Job.objects.update(**{"queued_at": long_ago, "step": 70, "last_report_at": last, **fields})

    with living(attempt):
        for watch in (watch_of(attempt), watch_of(attempt)):  # the agent was started again
            check_once(watch)
            check_once(watch)

    warnings = [event for event in Job.objects.get().events.all() if occasion_of(event) == Occasion.WARNING]
    assert [event.reason for event in warnings] == [
        "It has reported nothing for 10 min or longer (the last step was 70). "
        "Its log and the use of its devices may say why."
    ] * is_told
    Job.objects.update(queued_at=timezone.now())
    assert not is_silent(Job.objects.get(), timezone.now()), "an earlier attempt told them"


@pytest.mark.code("F26")
def test_process_that_does_not_die_keeps_its_device_and_is_named(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.STOPPING)
    other = make_attempt(state=JobState.RUNNING)
    left = [{"pid": 40, "name": "bwrap"}, {"pid": 41, "name": "python\0"}]
    with living(attempt, silent_for_s=31) as folder, living(other):
        write_record(folder.undying, {"processes": left})
        job, neighbour = check_until(watch_of(attempt), out_of_sight), check_once(watch_of(other))

    assert (job.state, neighbour.state) == (JobState.UNKNOWN, JobState.RUNNING)
    assert "process 41 (python\ufffd) does not end" in job.reason
    assert [lease.device.health for lease in attempt.leases.all()] == [Health.FENCED]
    assert [lease.device.health for lease in other.leases.all()] == [Health.OK]


@pytest.mark.code("F26")
def test_unkillable_process_of_a_dead_supervisor_keeps_its_device(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    write_identity(attempt)
    watch = watch_of(attempt)

    def look() -> Job:
        """With a process of the attempt that is there again whenever it is looked for."""
        left = [sys.executable, "-c", "input()"]
        with subprocess.Popen(left, stdin=subprocess.PIPE, env={"BERTH_NONCE": attempt.nonce}) as process:
            # The kernel tells of an exec before it shows the new environment.
            wait_until(lambda: f"BERTH_NONCE={attempt.nonce}".encode() in environ(process.pid))
            return check_once(watch)

    assert look().state == JobState.RUNNING
    watch.dying_since -= 31
    job = look()

    assert (job.state, Device.objects.get().health) == (JobState.UNKNOWN, Health.FENCED)
    assert "does not end" in job.reason
    job = check_until(watch, ended)
    assert (job.state, job.exit_kind) == (JobState.BACKOFF, ExitKind.LOST)
    assert Device.objects.get().health == Health.OK


@pytest.mark.code("F66")
def test_attempt_is_lost_at_once_after_a_reboot(make_attempt, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    write_identity(attempt, boot="another boot")

    job = check_until(watch_of(attempt), ended)

    assert (job.state, job.exit_kind) == (JobState.BACKOFF, ExitKind.LOST)


@pytest.mark.code("F32")
@pytest.mark.parametrize(
    ("record", "state"),
    [
        ({"v": 0, "kind": "ok"}, JobState.SUCCEEDED),
        ({"v": 2, "kind": "ok", "ranks": [{"rank": 0, "slept_s": 1}], "kept": [1]}, JobState.SUCCEEDED),
        ({"v": 2, "kind": "of the future"}, JobState.BACKOFF),
    ],
    ids=["older", "newer", "a kind that nobody knows yet"],
)
def test_exit_record_of_another_version_ends_the_job(make_attempt, watch_of, record, state):
    attempt = make_attempt(state=JobState.RUNNING)
    record |= {"number": attempt.number, "nonce": attempt.nonce}
    make_folder(attempt).exit.write_text(json.dumps(record))

    assert check_until(watch_of(attempt), lambda job: job.state == state).exit_kind in {"ok", "infra"}
    check_invariants()


@pytest.mark.code("F07")
def test_dead_launch_is_given_up_after_its_deadline_and_retried(make_attempt, watch_of):
    attempt = make_attempt()
    lifecycle.claim_launch(attempt, timezone.now())
    make_folder(attempt)
    watch = watch_of(attempt)
    assert check_once(watch).state == JobState.STARTING
    assert watch.unstarted_since is not None
    watch.unstarted_since -= 16

    job = check_until(watch, ended)

    assert (job.state, job.launch_failures) == (JobState.QUEUED, 1)
    assert (read_record(launcher.folder_of(attempt).exit) or {})["kind"] == "infra", "a late one must leave"
    check_invariants()


def test_working_launch_is_never_given_up(make_attempt, watch_of):
    attempt = make_attempt()
    lifecycle.claim_launch(attempt, timezone.now())
    watch = watch_of(attempt)
    with launcher.preparing(launcher.folder_of(attempt)):
        check_once(watch)
        assert watch.unstarted_since is not None
        watch.unstarted_since -= 1000

        assert check_once(watch).state == JobState.STARTING


@pytest.mark.code("F62", "F63")
def test_neither_clock_jumps_nor_a_suspended_host_make_a_job_unknown(make_attempt, watch_of):
    """Asleep, the clock of heartbeats stands still and that on the wall goes on."""
    attempt = make_attempt(state=JobState.RUNNING)
    watch = watch_of(attempt)
    with living(attempt):
        before = check_once(watch).event_count
        for offset_s in (600, 86_400, *(10, -10) * 5, -3600):
            now = timezone.now() + timedelta(seconds=offset_s)
            watch.check(Attempt.objects.select_related("job").get(), now)
            Sweeper().sweep(now)

    job = Job.objects.get()
    assert (job.state, job.event_count) == (JobState.RUNNING, before)
    assert Lease.objects.active().count() == 1
    assert Device.objects.get().health == Health.OK
    check_invariants()


@pytest.mark.code("F60")
def test_clock_jump_gives_up_no_launch(make_attempt, watch_of):
    attempt = make_attempt()
    lifecycle.claim_launch(attempt, timezone.now() - timedelta(hours=1))
    make_folder(attempt)
    watch = watch_of(attempt)

    watch.check(Attempt.objects.select_related("job").get(), timezone.now() + timedelta(hours=1))

    assert Job.objects.get().state == JobState.STARTING


def test_a_last_checkpoint_is_taken_before_the_attempt_ends(make_attempt, home, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    Attempt.objects.update(last_step=40)
    write_checkpoint(attempt, home)
    write_exit(attempt, "signal")

    job = check_until(watch_of(attempt), ended)

    assert (job.state, job.failures) == (JobState.QUEUED, 0), "progress: no wait, all retries"
    assert Checkpoint.objects.get().step == 40


def test_checkpoint_that_nothing_proves_complete_is_skipped_and_reported(make_attempt, home, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    write_identity(attempt, alive_for_s=10)
    folder = home.job(attempt.job_id)
    (folder.checkpoints).mkdir(parents=True)
    (folder.checkpoints / "step_30.dat").write_text("its writer was killed, perhaps in the middle of it")
    write_exit(attempt, "signal")

    check_until(watch_of(attempt), ended)

    assert Checkpoint.objects.count() == 0
    told = [event.reason for event in attempt.job.events.of(Happened.CHECKPOINT_PASSED_OVER)]
    assert [text.partition(":")[0] for text in told] == ["The checkpoint step_30.dat was passed over"]


def test_steps_that_an_earlier_attempt_reached_are_not_progress(make_attempt, home, watch_of):
    """A script that never resumes writes its step 40 in every attempt: its retries must run out."""
    attempt = make_attempt(state=JobState.RUNNING)
    Attempt.objects.update(last_step=40, resumed_from_step=40)
    write_checkpoint(attempt, home)
    write_exit(attempt, "signal")

    job = check_until(watch_of(attempt), ended)

    assert (job.state, job.failures) == (JobState.BACKOFF, 1)


def test_save_at_the_start_without_steps_is_not_progress(make_attempt, home, watch_of):
    attempt = make_attempt(state=JobState.RUNNING)
    write_checkpoint(attempt, home)
    write_exit(attempt, "signal", run_s=2.0)

    assert check_until(watch_of(attempt), ended).state == JobState.BACKOFF


@pytest.mark.parametrize(("run_s", "state"), [(104.0, JobState.BACKOFF), (300.0, JobState.QUEUED)])
def test_without_steps_an_attempt_that_dies_after_the_same_time_made_no_progress(
    make_job, make_device, make_attempt, home, watch_of, run_s, state
):
    """A script that saves one file, never resumes and always fails at the same place uses up its retries."""
    job = make_job()
    first = make_attempt(job, state=JobState.RUNNING)
    lifecycle.end(
        first, Ending(ExitKind.SIGNAL, sentence_only("Killed."), timezone.now(), run_s=100.0, progressed=True)
    )
    job.refresh_from_db()
    attempt = make_attempt(job, state=JobState.RUNNING, devices=list(Device.objects.all()))
    write_checkpoint(attempt, home)
    write_exit(attempt, "signal", run_s=run_s)

    assert check_until(watch_of(attempt), ended).state == state


@pytest.mark.parametrize(
    ("resumes", "last_step", "is_same"),
    [(False, 1010, True), (False, 2000, False), (True, None, False), (True, 1010, False), (True, 1000, True)],
)
def test_a_job_that_goes_on_may_be_killed_after_the_same_time_again(
    make_job, make_attempt, home, resumes, last_step, is_same
):
    """A leak of memory ends each attempt after six hours, and each goes on where the last one ended."""
    job = make_job(seen_to_resume=resumes)
    first = make_attempt(job, state=JobState.RUNNING)
    Attempt.objects.update(last_step=1000)
    lifecycle.end(
        first, Ending(ExitKind.SIGNAL, sentence_only("Killed."), timezone.now(), run_s=100.0, progressed=True)
    )
    job.refresh_from_db()
    attempt = make_attempt(job, state=JobState.RUNNING, devices=list(Device.objects.all()))
    Attempt.objects.filter(pk=attempt.pk).update(last_step=last_step)

    assert CheckpointKeeper(attempt)._is_same_place(104.0) == is_same


def test_attempt_that_raises_does_not_stop_the_others(make_attempt, home, caplog):
    bad, good = make_attempt(state=JobState.RUNNING), make_attempt(state=JobState.RUNNING)
    for attempt in (bad, good):
        make_folder(attempt)
    home.job(bad.job_id).metrics.write_text("a file where a folder belongs")
    write_exit(good, "ok")
    agent = Loop(threading.Event())
    deadline = time.monotonic() + PATIENCE_S

    while not ended(Job.objects.get(pk=good.job_id)) or "failed; retrying" not in caplog.text:
        assert time.monotonic() < deadline
        agent.tick()

    assert caplog.text.count(f"Handling attempt {bad} failed") == 1, "told once a second, not each turn"
    threads = [watch.keeper.thread for watch in agent.watches.values()]
    agent.forget()
    for thread in threads:
        if thread is not None:
            thread.join()


def test_a_turn_costs_one_query_however_many_attempts_live(make_attempt, django_assert_num_queries):
    agent = Loop(threading.Event())
    agent.swept_at = time.monotonic() + 1000
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(living(make_attempt(state=JobState.RUNNING)))
        while len(agent.watches) < 4 or any(watch.follower is None for watch in agent.watches.values()):
            agent.tick()  # a busy machine follows some of them a turn later
        for watch in agent.watches.values():
            watch.keeper.stop()
            watch.followed_at = 0.0

        with django_assert_num_queries(1):
            agent.tick()

    threads = [watch.keeper.thread for watch in agent.watches.values()]
    agent.forget()
    for thread in threads:
        if thread is not None:
            thread.join()


@pytest.mark.django_db
def test_a_turn_without_attempts_asks_only_whether_there_are_any(django_assert_num_queries):
    agent = Loop(threading.Event())
    agent.swept_at = time.monotonic() + 1000

    with django_assert_num_queries(1) as asked:
        agent.tick()

    assert "spec_fields" not in asked[0]["sql"]
    assert "JOIN" not in asked[0]["sql"]


@pytest.mark.code("F41")
def test_agent_survives_database_outages_and_its_own_errors(monkeypatch, caplog):
    stopping = threading.Event()
    agent = Loop(stopping)
    errors: list[Exception] = [OperationalError("database is locked"), ZeroDivisionError("a bug")]

    def tick() -> None:
        if errors:
            raise errors.pop(0)
        stopping.set()

    monkeypatch.setattr(agent, "tick", tick)
    monkeypatch.setattr(stopping, "wait", lambda timeout=None: False)
    agent.run()

    assert "The agent waits for the database: database is locked" in caplog.text
    assert "A turn of the agent failed" in caplog.text


@pytest.mark.code("F31")
def test_second_agent_refuses_to_start(home):
    with (home.root / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AgentRunning, match="An agent already runs for"):
            loop.run()


# --- sweeps


def living_attempts() -> list[Attempt]:
    return list(Attempt.objects.live().select_related("job"))


@pytest.mark.code("F76")
def test_job_on_a_lost_device_is_stopped_to_restart_elsewhere(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)

    job = lifecycle.lose_device(attempt.job, why=sentence_only("GPU 0 is faulty: fell off the bus."))

    assert (job.state, job.stop_reason) == (JobState.STOPPING, StopReason.GPU_FAULT)
    assert (
        lifecycle.end(attempt, Ending(ExitKind.USER_ERROR, sentence_only("CUDA error"), timezone.now())).state
        == JobState.BACKOFF
    )


def test_job_is_requeued_when_its_back_off_is_over(make_job):
    now = timezone.now()
    due = make_job(state=JobState.BACKOFF, next_try_at=now)
    later = make_job(state=JobState.BACKOFF, next_try_at=now + timedelta(seconds=5))

    Sweeper().end_waits(now)

    assert [Job.objects.get(pk=job.pk).state for job in (due, later)] == [JobState.QUEUED, JobState.BACKOFF]


@pytest.mark.parametrize(("alive_for_s", "state"), [(8, JobState.RUNNING), (11, JobState.STOPPING)])
def test_job_over_its_time_limit_is_stopped_by_its_run_time(make_attempt, alive_for_s, state):
    attempt = make_attempt(state=JobState.RUNNING, time_limit_s=20, seconds_run=10)
    write_identity(attempt, alive_for_s=alive_for_s)

    Sweeper().stop_over_limit(timezone.now() + timedelta(hours=1))  # F60: the clock on the wall says nothing

    job = Job.objects.get()
    assert job.state == state
    assert job.stop_reason == (StopReason.TIMEOUT if state == JobState.STOPPING else "")


def test_stop_request_becomes_one_order_until_it_is_repeated(make_attempt):
    attempt = make_attempt(state=JobState.STOPPING)
    folder = make_folder(attempt)
    sweeper = Sweeper()
    for _ in range(3):
        sweeper.order_stops(living_attempts())
    assert len(list(folder.orders.iterdir())) == 1

    sweeper.ordered_at[attempt.pk] -= 11
    sweeper.order_stops(living_attempts())

    orders = [read_record(path) or {} for path in folder.orders.iterdir()]
    assert [order["reason"] for order in orders] == ["preempt", "preempt"]


@pytest.mark.code("F50")
def test_stop_order_that_cannot_be_written_does_not_stop_the_agent(make_attempt, caplog):
    attempt = make_attempt(state=JobState.STOPPING)
    folder = make_folder(attempt)
    folder.orders.rmdir()
    folder.orders.write_text("in the way")

    Sweeper().order_stops(living_attempts())

    assert "could not be written; retrying" in caplog.text


@pytest.mark.parametrize(
    ("act", "state"), [(lifecycle.cancel, JobState.CANCELLED), (lifecycle.preempt, JobState.QUEUED)]
)
def test_attempt_stopped_before_its_launch_ends_without_one(make_attempt, act, state):
    attempt = make_attempt()
    act(attempt.job, by="root")

    Sweeper().order_stops(living_attempts())

    assert Job.objects.get().state == state
    check_invariants()


RUNS = b"import os; open(os.environ['BERTH_OUTPUT_DIR'] + '/runs', 'a').write('x')\n"


@pytest.fixture
def placed(make_attempt, make_job, store_script) -> Callable[[], Any]:
    """An attempt that waits for its launch; its script leaves a mark for each run."""
    return lambda: make_attempt(make_job(bundle=store_script(RUNS)))


def wait_for_run(home: Any, attempt: Attempt) -> str:
    folder = home.job(attempt.job_id)
    wait_until(folder.attempt(attempt.number).exit.exists)
    return str((folder.output / "runs").read_text())


@pytest.mark.code("F03", "F33")
def test_agent_launches_an_attempt_whose_wake_up_was_lost(placed, home):
    attempt = placed()
    sweeper = Sweeper()
    sweeper.run_errands(timezone.now() + timedelta(seconds=3))
    assert Outbox.objects.get(errand=Errand.LAUNCH).deliveries == 1, "sent again first"
    assert Attempt.objects.get().state == AttemptState.CREATED

    sweeper.run_errands(timezone.now() + timedelta(seconds=6))
    sweeper.run_errands(timezone.now() + timedelta(seconds=7))

    assert wait_for_run(home, attempt) == "x"
    for thread in sweeper.launches.values():
        thread.join()


@pytest.mark.code("F38")
def test_five_wake_ups_at_once_launch_once(placed, home):
    attempt = placed()

    assert race(*[lambda _: tasks.launch(str(attempt.job_id), 1)] * 5) == []

    assert wait_for_run(home, attempt) == "x"


@pytest.mark.django_db(transaction=True)
def test_a_pass_launches_its_last_attempt_itself_and_leaves_the_others_to_all_workers(
    make_job, make_device, store_script, home, monkeypatch
):
    sent: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        "orchestrator.live.wakeups._send_task", lambda *arguments, **_named: sent.append(arguments)
    )
    bundle = store_script(RUNS)
    for index in range(3):
        make_device(index)
        lifecycle.queue_errand(make_job(bundle=bundle), Errand.SCHEDULE)
    sent.clear()

    tasks.schedule(for_errands=True)

    *others, last = Attempt.objects.order_by("pk")
    assert wait_for_run(home, last) == "x"
    assert sent == [("orchestrator.agent.tasks.launch", str(other.job_id), 1) for other in others]
    assert [other.state for other in others] == [AttemptState.CREATED] * 2


@pytest.mark.code("F39")
def test_wake_up_of_an_old_attempt_has_no_effect(make_attempt):
    old = make_attempt()
    device = old.leases.get().device
    lifecycle.end(old, Ending(ExitKind.INFRA, sentence_only("No."), timezone.now()))
    job = Job.objects.get()
    lifecycle.start(job, [(device, None)], nonce="n", now=timezone.now())

    tasks.launch(str(job.pk), 1)

    assert Attempt.objects.get(number=2).state == AttemptState.CREATED


@pytest.mark.code("F40")
def test_launch_that_kills_every_process_handling_it_is_given_up(make_attempt):
    make_attempt()
    Outbox.objects.filter(errand=Errand.LAUNCH).update(deliveries=3)

    Sweeper().run_errands(timezone.now() + timedelta(seconds=6))

    job = Job.objects.get()
    assert (job.state, job.exit_kind) == (JobState.FAILED, ExitKind.INFRA)
    assert job.reason == "Launching failed 3 times without an answer."
    check_invariants()


def test_one_pass_serves_many_requests(make_job, django_assert_max_num_queries):
    for _ in range(50):
        lifecycle.queue_errand(make_job(state=JobState.HELD), Errand.SCHEDULE)

    with django_assert_max_num_queries(24):
        Sweeper().run_errands(timezone.now() + timedelta(seconds=6))

    assert not Outbox.objects.open().exists()


def test_failing_sweep_does_not_stop_the_others(make_job, monkeypatch, caplog):
    job = make_job(state=JobState.BACKOFF, next_try_at=timezone.now())
    sweeper = Sweeper()
    monkeypatch.setattr(sweeper, "stop_over_limit", _broken)
    monkeypatch.setattr(sweeper, "clean", _broken)

    sweeper.sweep(timezone.now())

    assert Job.objects.get(pk=job.pk).state == JobState.QUEUED
    assert caplog.text.count("A sweep failed: _broken") == 2


def _broken(_now: object) -> None:
    raise ZeroDivisionError


@pytest.mark.code("F04")
def test_unfinished_upload_is_removed_after_an_hour(home, ada):
    old, new = home.uploads / "old", home.uploads / "new"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (time.time() - 3700,) * 2)
    IdempotencyKey.objects.create(
        user=ada, endpoint="jobs", key="k", fingerprint="", status=201, answer={}, created_at=timezone.now()
    )

    clean(timezone.now())
    assert (old.exists(), new.exists(), IdempotencyKey.objects.count()) == (False, True, 1)

    clean(timezone.now() + timedelta(hours=25))
    assert IdempotencyKey.objects.count() == 0


@pytest.mark.code("F50")
def test_last_checkpoint_is_taken_once_the_disk_has_space_again(make_attempt, home):
    attempt = make_attempt(state=JobState.RUNNING)
    folder = home.job(attempt.job_id)
    with living(attempt):
        folder.checkpoints.mkdir(parents=True)
        with zipfile.ZipFile(folder.checkpoints / "state.pt", "w") as file:
            file.writestr("step", "1")
        folder.generations.write_text("in the way, as a full disk is")
        keeper = CheckpointKeeper(attempt)
        failed = keeper._try(partial(keeper._look, writer_alive=None))
        folder.generations.unlink()
        taken = keeper._try(partial(keeper._look, writer_alive=None))

    assert (failed, taken) == (False, True)
    assert Checkpoint.objects.filter(job=attempt.job).count() == 1


@pytest.mark.code("F61")
def test_work_due_before_the_clock_went_back_is_still_done(make_attempt, make_job, home):
    """Else a lost launch, or a job in backoff, would wait until the clock has caught up."""
    attempt = make_attempt()
    waiting = make_job(state=JobState.BACKOFF, next_try_at=timezone.now() + timedelta(seconds=5))
    an_hour_ago = timezone.now() - timedelta(hours=1)

    sweeper = Sweeper()
    sweeper.end_waits(an_hour_ago)
    sweeper.run_errands(an_hour_ago)
    for thread in sweeper.launches.values():
        thread.join()

    assert Job.objects.get(pk=waiting.pk).state == JobState.QUEUED
    assert Attempt.objects.get(pk=attempt.pk).state != AttemptState.CREATED


@pytest.mark.code("F67")
def test_day_without_power_is_not_charged_to_the_job(make_attempt, home):
    attempt = make_attempt(state=JobState.RUNNING)
    write_identity(attempt, boot="of yesterday")
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.heartbeat.write_bytes(b"1")
    for path, ago_s in ((folder.supervisor, 86_460), (folder.heartbeat, 86_400)):
        os.utime(path, (time.time() - ago_s, time.time() - ago_s))

    job = check_until(AttemptWatch(attempt), lambda job: job.state != JobState.RUNNING)

    assert 59 < job.seconds_run < 61
