"""Files of a run that can be opened, and fail while they are read."""

import time
from pathlib import Path

import pytest

from orchestrator.agent.follow_events import EventFiles
from orchestrator.agent.follow_records import RecordFiles
from orchestrator.agent.loop import Loop
from orchestrator.agent.stopping import StopRequest
from orchestrator.agent.telemetry.metric_lines import parse_lines
from orchestrator.agent.telemetry.sources import Sources
from orchestrator.agent.unread_files import TRY_FOR_S
from orchestrator.facts.events import Happened
from orchestrator.models import Attempt, Job, JobState
from orchestrator.store.layout import JobFolder
from tests.agent.test_agent import check_once, watch_of  # noqa: F401  # a fixture
from tests.jobs.folders import living, make_folder, write_exit

pytestmark = pytest.mark.usefixtures("home", "db")

# Its memory is a plain file that can be opened; the kernel answers EIO for its first bytes.
BROKEN = JobFolder(Path("/proc/self"))
TOO_FAR = -1  # an offset at which the kernel answers EINVAL for any file
EMPTY = parse_lines(b"", now=0.0, last_step=None)


def test_an_event_file_that_fails_is_tried_for_a_while_and_then_given_up():
    files = EventFiles(BROKEN, 0.0, {"mem": 0})

    assert files.read(EMPTY, 0.0) is False
    assert (files.offsets, files.unread.take_given_up()) == ({"mem": 0}, {})
    files.unread._since_s["mem"] -= TRY_FOR_S
    assert files.read(EMPTY, 0.0) is True
    assert (files.offsets, files.unread.take_given_up()) == ({"mem": -1}, {"mem": "Input/output error"})
    assert files.read(EMPTY, 0.0) is False


def test_a_record_file_that_fails_is_tried_for_a_while_and_then_given_up():
    files = RecordFiles(
        BROKEN, 0.0, {"mem": {"header": ["step", "loss"]}, "limits": {"header": ["step", "loss"]}}
    )

    assert files.read(EMPTY, Sources({}), 0.0) is False
    assert {*files.files} == {"mem", "limits"}
    files.unread._since_s["mem"] -= TRY_FOR_S
    files.read(EMPTY, Sources({}), 0.0)
    assert ({*files.files}, files.unread.take_given_up()) == ({"limits"}, {"mem": "Input/output error"})


def test_at_the_end_of_a_run_a_file_that_fails_is_given_up_at_once():
    files = EventFiles(BROKEN, 0.0, {"mem": 0})

    files.read(EMPTY, 0.0, at_end=True)

    assert files.unread.take_given_up() == {"mem": "Input/output error"}


def test_the_history_tells_once_which_file_of_a_run_is_no_longer_read(make_attempt, watch_of, home):  # noqa: F811
    attempt = make_attempt(state=JobState.RUNNING)
    make_folder(attempt)
    path = home.job(attempt.job_id).output / "events.out.tfevents.1.a"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    attempt.followed = {"event_files": {"output/events.out.tfevents.1.a": (1 << 63) - 1}}
    attempt.save()

    for _ in range(2):
        watch_of(attempt).follow(at_end=True)
        attempt.refresh_from_db()

    assert [each.reason for each in attempt.job.events.of(Happened.FILE_UNREAD)] == [
        "Berth no longer reads output/events.out.tfevents.1.a, because that fails (Invalid argument); "
        "metrics in it may be missing."
    ]


def test_a_run_whose_metrics_fail_keeps_its_watch_and_its_history_tells(make_attempt, watch_of):  # noqa: F811
    attempt = make_attempt(state=JobState.RUNNING)
    make_folder(attempt).metrics.write_text("{}\n")
    attempt.followed = {"metrics": TOO_FAR}
    attempt.save()
    watch = watch_of(attempt)

    assert watch.follow() is False
    assert watch.follow() is False, "not tried again at once"
    assert watch.unread_since is not None
    watch.unread_since -= TRY_FOR_S
    for _ in range(2):
        watch.reread_at = 0.0
        watch.follow()

    assert [each.reason for each in attempt.job.events.of(Happened.READING_FAILS)] == [
        "Berth fails to read what the run writes (Invalid argument), so its metrics stand still. "
        "The run goes on, and Berth keeps trying."
    ]
    attempt.followed = {}
    attempt.save()
    watch.attempt.refresh_from_db()
    watch.reread_at = 0.0
    watch.follow()
    assert watch.unread_since is None


def test_a_run_whose_last_lines_fail_ends_without_them_after_a_while(make_attempt, watch_of):  # noqa: F811
    attempt = make_attempt(state=JobState.RUNNING)
    make_folder(attempt).metrics.write_text("{}\n")
    attempt.followed = {"metrics": TOO_FAR}
    attempt.save()
    write_exit(attempt, "ok")
    watch = watch_of(attempt)

    began_s = time.monotonic()
    assert check_once(watch).state == JobState.RUNNING
    assert time.monotonic() - began_s < TRY_FOR_S / 2
    watch.unread_since -= TRY_FOR_S
    watch.reread_at = 0.0
    job = check_once(watch)
    while job.state == JobState.RUNNING:  # its checkpoints are looked for by a thread
        job = check_once(watch)

    assert job.state == JobState.SUCCEEDED
    assert job.events.of(Happened.END_UNREAD).count() == 1


def test_a_run_that_cannot_be_read_leaves_the_turn_to_others(make_attempt, make_job):
    broken, sound = make_attempt(state=JobState.RUNNING), make_attempt(state=JobState.RUNNING)
    for attempt in (broken, sound):
        make_folder(attempt).metrics.write_text('{"step": 3, "loss": 0.5}\n')
    Attempt.objects.filter(pk=broken.pk).update(followed={"metrics": TOO_FAR})
    loop = Loop(StopRequest())
    with living(broken), living(sound):
        try:
            loop.tick()
            first = loop.watches[broken.pk]
            for _ in range(3):
                for watch in loop.watches.values():
                    watch.followed_at = 0.0
                loop.tick()

            assert loop.watches[broken.pk] is first, "its checkpoints are still watched"
            assert Job.objects.get(pk=sound.job_id).step == 3
        finally:
            loop.forget()
