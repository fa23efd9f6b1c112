"""What if: recorded jobs under another policy or pool, beside what happened."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from orchestrator.exceptions import Impossible, Malformed
from orchestrator.models import Attempt, AttemptState, Device, ExitKind, JobState, Lease
from orchestrator.scheduler.forecast import replay_runs
from orchestrator.scheduler.forecast.replay_runs import ReplayState
from orchestrator.scheduler.forecast.replays import Question, answer, record
from orchestrator.scheduler.simulator.variants import Variant
from orchestrator.spec.job_spec import GIB
from tests.waiting import PATIENCE_S

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
HOUR_S = 3600.0


@pytest.fixture
def ran(make_job):
    """A job that ended: submitted, started and ended in hours before now."""

    def make(submitted, started, ended, *, owner=None, gpus=1, memory_gib=None, peak_gib=None, **fields):
        def at(hours):
            return NOW - timedelta(hours=hours)

        job = make_job(
            owner,
            state=JobState.SUCCEEDED,
            submitted_at=at(submitted),
            ended_at=at(ended),
            seconds_run=(started - ended) * HOUR_S,
            attempt_count=1,
            gpus=gpus,
            **fields,
        )
        attempt = Attempt.objects.create(
            job=job, number=1, nonce="0", state=AttemptState.ENDED, kind=ExitKind.OK, created_at=at(started)
        )
        for rank, device in enumerate(Device.objects.all()[:gpus]):
            Lease.objects.create(
                attempt=attempt,
                device=device,
                rank=rank,
                started_at=at(started),
                ended_at=at(ended),
                memory_bytes=None if memory_gib is None else memory_gib * GIB,
                peak_bytes=None if peak_gib is None else peak_gib * GIB,
            )
        return job

    return make


@pytest.fixture
def one_gpu(make_device):
    return make_device(0)


@pytest.fixture
def a_queue(one_gpu, ran, bob):
    """Four jobs of two hours, submitted at once to one GPU."""
    for number in range(4):
        ran(10, 10 - 2 * number, 8 - 2 * number, owner=bob if number % 2 else None)


def ask(*variants: Variant, days: int = 7) -> list[Any]:
    """The rows of the answer: what happened, the pool as it is, then each variant."""
    return answer(Question("default", days, NOW.timestamp(), list(variants)))["rows"]


def test_what_happened_is_measured_as_it_was(a_queue):
    happened = ask()[0]["summary"]

    assert (happened["jobs"], happened["mean_wait_s"]) == (4, 3 * HOUR_S)
    assert happened["used_percent"] == pytest.approx(100)


def test_the_same_pool_under_first_come_first_served_gives_what_happened(a_queue):
    rows = ask(Variant(order="fifo"))

    again = rows[2]["summary"]
    assert again["mean_wait_s"] == pytest.approx(3 * HOUR_S)
    assert again["restarts"] == 0


def test_one_more_gpu_shortens_the_waits(a_queue):
    rows = ask(Variant(order="fifo", more_devices=1))

    assert rows[2]["summary"]["mean_wait_s"] == pytest.approx(HOUR_S)
    assert rows[2]["summary"]["used_percent"] == pytest.approx(100)


def test_jobs_that_share_by_what_they_were_seen_to_use_need_not_wait(one_gpu, ran):
    for number in range(4):
        ran(10, 10 - 2 * number, 8 - 2 * number, peak_gib=15)

    assert ask(Variant(measured_memory=True))[2]["summary"]["mean_wait_s"] == 0


def test_slices_take_the_jobs_that_fit_into_them(one_gpu, ran):
    for number in range(4):
        ran(10, 10 - 2 * number, 8 - 2 * number, peak_gib=8)

    assert ask(Variant(split_devices=1))[2]["summary"]["mean_wait_s"] == 0


def test_jobs_that_a_variant_can_never_hold_are_counted_and_left_out(make_device, ran):
    make_device(0)
    make_device(1)
    ran(10, 10, 8, gpus=2)
    ran(10, 8, 6)

    row = ask(Variant(more_devices=-1))[2]

    assert (row["summary"]["jobs"], row["left_out"]) == (1, 1)


def test_only_ended_jobs_of_the_window_and_the_pool_are_replayed(one_gpu, ran, make_pool, make_job):
    ran(10, 10, 8)
    ran(24 * 9, 24 * 9, 24 * 8)
    ran(10, 10, 8, pool=make_pool("other"))
    make_job(state=JobState.CANCELLED, ended_at=NOW)
    make_job()

    assert len(record("default", 7, NOW.timestamp()).jobs) == 1


def test_an_empty_record_says_so(one_gpu):
    with pytest.raises(Impossible, match="no job that ended in the last 7 days"):
        ask()


@pytest.mark.parametrize(
    ("days", "variant", "field"),
    [
        (0, {}, "days"),
        (10_000, {}, "days"),
        (7, {"more_devices": -1}, "more"),
        (7, {"more_devices": 1000}, "more"),
        (7, {"split_devices": 2}, "split"),
        (7, {"split_devices": 1, "slices": 1}, "slices"),
    ],
)
def test_questions_that_make_no_sense_name_the_field(days, variant, field, one_gpu):
    with pytest.raises(Malformed) as refusal:
        Question("default", days, NOW.timestamp(), [Variant(**variant)])

    assert field in refusal.value.fields


def test_the_command_prints_a_row_for_each(a_queue, monkeypatch):
    monkeypatch.setattr("django.utils.timezone.now", lambda: NOW)
    monkeypatch.setattr("os.nice", lambda _: 0)  # for good, and this process has more to do
    out = StringIO()

    call_command("whatif", "--more", "1", "--fifo", stdout=out)

    lines = out.getvalue().splitlines()
    assert lines[0] == "4 jobs on 1 device"
    assert [line.split("  ")[0] for line in lines[2:]] == [
        "what happened",
        "as it is now",
        "+1 devices, first come first served",
    ]
    with pytest.raises(CommandError, match="cannot change by -5"):
        call_command("whatif", "--more", "-5", stdout=out)


# As a process of its own


@pytest.fixture
def question(one_gpu) -> Question:
    return Question("default", 7, NOW.timestamp())


def test_a_question_is_asked_once_and_its_answer_kept(home, a_queue, question, monkeypatch):
    started: list[list[str]] = []

    def begin(command: list[str], **_: object) -> _Ended:
        started.append(command)
        return _Ended()

    monkeypatch.setattr("subprocess.Popen", begin)

    key = replay_runs.ask(question)
    assert replay_runs.state_of(key) == ReplayState.RUNNING
    replay_runs.ask(question)
    replay_runs.work_on(key)

    assert len(started) == 1
    assert replay_runs.state_of(key) == ReplayState.DONE
    assert replay_runs.read_answer(key)["answer"]["jobs"] == 4
    assert replay_runs.ask(question) == key
    assert len(started) == 1


class _Ended:
    def poll(self) -> int:
        return 0


def test_a_replay_that_cannot_be_answered_keeps_its_sentence(home, question, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: _Ended())
    key = replay_runs.ask(question)

    replay_runs.work_on(key)

    assert "nothing to replay" in replay_runs.problem_of(replay_runs.read_answer(key))


def test_replay_whose_process_died_has_failed_and_is_restarted(home, question, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: _Ended())
    key = replay_runs.ask(question)
    (replay_runs.folder() / f"{key}.lock").touch()  # taken, and free again without an answer

    assert replay_runs.state_of(key) == ReplayState.FAILED
    assert replay_runs.ask(question) == key
    assert replay_runs.state_of(key) == ReplayState.RUNNING


def test_replay_that_was_never_asked_for_has_no_state(home):
    assert replay_runs.state_of("0" * 32) is None


@pytest.mark.slow
def test_the_process_of_a_replay_runs_by_itself(home, question, tmp_path):
    """With an empty database it answers that there is nothing; that it answers at all is what counts."""
    environment = {**os.environ, "BERTH_HOME": str(home.root)}
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v", "0"], env=environment, check=True, timeout=PATIENCE_S
    )
    replay_runs.folder().mkdir()
    fields = {"pool": "default", "days": 7, "until_s": NOW.timestamp(), "variants": []}
    (replay_runs.folder() / f"{question.key}.question.json").write_text(json.dumps(fields))

    subprocess.run(
        [sys.executable, "manage.py", "whatif", "--question", question.key],
        env=environment,
        check=True,
        timeout=PATIENCE_S,
    )

    assert "nothing to replay" in replay_runs.problem_of(replay_runs.read_answer(question.key))
