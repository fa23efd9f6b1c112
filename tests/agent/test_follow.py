"""What a run writes is taken in exactly once, and none of it can hurt."""

import json
import os
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from orchestrator.agent import follow
from orchestrator.agent.follow import Follower
from orchestrator.agent.run_values import StepRate
from orchestrator.agent.telemetry.event_files import masked_crc
from orchestrator.facts.events import Happened
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.models import Attempt, ExitKind, Job, JobState
from orchestrator.store.logs.lines import read_index
from orchestrator.store.metrics.series import read_series, stored_seq
from orchestrator.store.metrics.writer import Point
from tests.jobs.folders import make_folder

pytestmark = pytest.mark.usefixtures("home", "db")


class Killed(Exception):
    """Stands for SIGKILL at one point."""


@pytest.fixture
def run(make_attempt) -> Any:
    """A running attempt with its folder."""
    attempt = make_attempt(state=JobState.RUNNING)
    make_folder(attempt)
    return attempt


def write(attempt: Attempt, *records: Any, end: str = "\n") -> None:
    with make_folder(attempt).metrics.open("a") as file:
        file.write("\n".join(each if isinstance(each, str) else json.dumps(each) for each in records) + end)


def follower(attempt: Attempt) -> Follower:
    return Follower(Attempt.objects.select_related("job").get(pk=attempt.pk))


def poll(attempt: Attempt, *, at_end: bool = False) -> Job:
    reader = follower(attempt)
    while reader.poll(at_end=at_end):
        pass
    reader.close()
    return Job.objects.get(pk=attempt.job_id)


def stored(home: Any, attempt: Attempt, name: str = "loss") -> list[float]:
    series = read_series(home.job(attempt.job_id).metrics, [name])
    return [float(value) for value in series[name].y] if name in series else []


def test_parameters_without_a_gradient_are_named_in_the_history(run):
    write(run, {"event": "unused_parameters", "step": 7, "parameters": "head.weight, head.bias"})

    poll(run)

    assert [each.reason for each in run.job.events.of(Happened.RUN_UNUSED_PARAMETERS)] == [
        "No gradient came for head.weight, head.bias in step 7; find_unused_parameters is on from there. "
        "Set it to expect this from the start."
    ]


def test_a_profile_is_told_in_the_history_and_printed_metrics_stay(run, home):
    run_folder = home.job(run.job_id).attempt(run.number)
    run_folder.log(0).write_text("step 1 loss 2.5\n")
    poll(run)
    parts = {"compute_s": 0.5, "copy_s": 0.0, "exchange_s": 0.0, "data_s": 0.38, "idle_s": 0.12}
    write(
        run,
        {
            "event": "profile",
            "steps": 10,
            "wall_s": 1.0,
            **parts,
            "device": "cpu",
            "trace": "profile/t.json.gz",
        },
    )
    write(run, {"event": "profile_failed", "reason": "no"}, {"event": "profile", "steps": "?", "wall_s": "x"})
    poll(run)
    run_folder.log(0).write_text("step 1 loss 2.5\nstep 2 loss 1.5\n")
    poll(run)

    told = [each.reason for each in run.job.events.of(Happened.RUN_PROFILED)]
    assert told == [
        "Profiled 10 steps: the training's thread computes 50 %, waits for data 38 %, runs other Python or idles 12 % of the time. "
        "Give its DataLoader more workers (num_workers), or prepare the data beforehand.",
        "Profiled ? steps; the trace was too large to sum up.",
    ]
    assert run.job.events.of(Happened.RUN_NOT_PROFILED).get().reason == "The profile could not be made: no."
    assert stored(home, run) == [2.5, 1.5]


def test_values_steps_and_points_reach_the_job(run, home):
    write(run, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5, "total_steps": 10})

    job = poll(run)

    assert (job.step, job.total_steps, job.last_values["loss"]) == (2, 10, 1.5)
    assert stored(home, run) == [2.0, 1.5]
    run.refresh_from_db()
    assert run.last_step == 2


@pytest.mark.code("T22")
def test_terabyte_of_metric_lines_does_not_delay_the_end_of_an_attempt(run, home, monkeypatch):
    monkeypatch.setattr(follow, "MOST_AT_END_BYTES", 4 << 20)
    monkeypatch.setattr(follow, "READ_AT_END_BYTES", 2 << 20)
    write(run, {"step": 1, "loss": 2.0})
    os.truncate(make_folder(run).metrics, 1 << 40)
    write(run, "", {"step": 2, "loss": 1.5})

    job = poll(run, at_end=True)

    assert job.step == 2
    assert stored(home, run) == [1.5]
    assert job.events.get(actor="agent").reason.startswith("1,024.0 GiB of its metric lines were passed over")


def test_only_the_logs_of_ranks_are_followed_whatever_lies_beside_them(run):
    logs = make_folder(run).logs
    for name in ("rank\u00b2.log", "rank7.log", "rank0.log"):
        (logs / name).write_text("a line\n" * 2000)
    reader = follower(run)

    reader.poll()

    reader.close()
    assert list(reader.log_indexes) == [0]


def test_incomplete_line_is_left_until_it_is_complete(run, home):
    write(run, {"step": 1, "loss": 2.0}, '{"step": 2, "lo', end="")
    reader = follower(run)
    reader.poll()
    with make_folder(run).metrics.open("a") as file:
        file.write('ss": 1.0}\n')

    reader.poll()

    reader.close()
    assert stored(home, run) == [2.0, 1.0]


@pytest.mark.code("B52")
@pytest.mark.parametrize(
    ("last", "values"), [('{"step": 2, "loss": 1.0}', [2.0, 1.0]), ('{"step": 2, "lo', [2.0])]
)
def test_last_line_without_newline_counts_if_it_is_complete(run, home, last, values):
    write(run, {"step": 1, "loss": 2.0}, last, end="")

    poll(run, at_end=True)

    assert stored(home, run) == values


def test_lines_of_logs_are_indexed_while_they_are_written(run):
    folder = make_folder(run)
    Job.objects.update(gpus=2)
    reader = follower(run)
    for rank in (0, 1):
        folder.log(rank).parent.mkdir(exist_ok=True)
        folder.log(rank).write_text("".join(f"line {number}\n" for number in range(2_500)))
        reader.poll()
    with folder.log(1).open("a") as file:
        file.write("more\n" * 1_000)
    reader.poll()
    reader.close()

    assert [int(line) for line in read_index(folder.log_index(0))["line"]] == [1000, 2000]
    assert [int(line) for line in read_index(folder.log_index(1))["line"]] == [1000, 2000, 3000]
    assert not list(folder.logs.glob("*.idx"))  # there, the run could put anything in its place


CRASHES: dict[str, Callable[[Follower], None]] = {}


def crash(name: str) -> Callable[[Callable[[Follower], None]], Callable[[Follower], None]]:
    def keep(break_it: Callable[[Follower], None]) -> Callable[[Follower], None]:
        CRASHES[name] = break_it
        return break_it

    return keep


def _killed(*_: object, **__: object) -> Any:
    raise Killed


@crash("before the columns are written")
def _before_flush(reader: Follower) -> None:
    reader.writer.flush = _killed  # type: ignore[method-assign]  # a fault, put where SIGKILL would strike


@crash("between the columns and the commit")
def _after_flush(reader: Follower) -> None:
    flush = reader.writer.flush

    def flush_and_die() -> Any:
        flush()
        raise Killed

    reader.writer.flush = flush_and_die  # type: ignore[method-assign]  # likewise


@crash("within the transaction")
def _in_commit(reader: Follower) -> None:
    reader._remark = _killed  # type: ignore[method-assign]  # likewise


@pytest.mark.parametrize("where", CRASHES)
def test_every_line_counts_once_wherever_the_agent_is_killed(run, home, where):
    expected = []
    for number in range(1, 6):
        write(run, {"step": 2 * number, "loss": float(number)}, {"step": 2 * number + 1, "acc": 0.5})
        expected.append(float(number))
        reader = follower(run)
        CRASHES[where](reader)
        with pytest.raises(Killed):
            reader.poll()

        poll(run)

        assert stored(home, run) == expected
    assert stored_seq(home.job(run.job_id).metrics) == Job.objects.get().metric_seq


def test_printed_numbers_count_until_the_run_reports_by_itself(run, home):
    log = make_folder(run).log(0)
    log.write_text("step 1 loss 3.0\n")
    assert poll(run).step == 1
    write(run, {"step": 2, "loss": 2.0})
    poll(run)
    log.write_text("step 1 loss 3.0\nstep 3 loss 99.0\n")

    job = poll(run)

    assert job.last_values == {"loss": 2.0}
    assert (job.step, stored(home, run)) == (2, [2.0])


def test_printed_series_go_when_the_run_reports_by_itself(run, home, make_attempt):
    write(run, {"step": 1, "loss": 4.0})
    poll(run)
    device = run.leases.get().device
    lifecycle.end(run, lifecycle.Ending(ExitKind.PREEMPTED, sentence_only(""), run.created_at))
    second = make_attempt(Job.objects.get(), state=JobState.RUNNING, devices=[device])
    make_folder(second).log(0).write_text("epoch 9 step 32 crash: 0.0 ballast: 5\n")
    assert poll(second).step == 32
    write(second, {"step": 2, "loss": 3.0})

    job = poll(second)

    assert job.last_values == {"loss": 3.0}
    assert job.metric_seq == stored_seq(home.job(run.job_id).metrics) == 2
    assert list(read_series(home.job(run.job_id).metrics)) == ["loss"]
    assert stored(home, run) == [4.0, 3.0]
    second.refresh_from_db()
    assert (second.first_step, second.last_step) == (2, 2)


@pytest.mark.parametrize("killed_at", ["before", "after"])
def test_printed_series_go_also_when_the_agent_is_killed_while_it_drops_them(
    run, home, monkeypatch, killed_at
):
    make_folder(run).log(0).write_text("step 1 loss 3.0\nstep 2 loss 2.0\n")
    poll(run)
    write(run, {"step": 1, "score": 1.0})
    reader = follower(run)
    if killed_at == "before":
        monkeypatch.setattr(transaction, "atomic", _killed)
    else:
        monkeypatch.setattr(follow, "MetricWriter", _killed)
    with pytest.raises(Killed):
        reader.poll()
    monkeypatch.undo()

    job = poll(run)

    assert job.last_values == {"score": 1.0}
    assert list(read_series(home.job(run.job_id).metrics)) == ["score"]
    assert job.metric_seq == 1


def test_samples_are_called_samples_on_the_job(run):
    make_folder(run).log(0).write_text("Train Epoch: 1 [5120/60000 (9%)]\tLoss: 0.3\n")

    job = poll(run)

    assert (job.step, job.step_unit) == (5120, "sample")


def test_epochs_are_called_epochs_on_the_job(run):
    make_folder(run).log(0).write_text("Epoch 3/10, loss = 0.5\n")

    job = poll(run)

    assert (job.step, job.total_steps, job.step_unit) == (3, 10, "epoch")


def test_epochs_after_a_percentage_do_not_end_at_a_hundred(run):
    log = make_folder(run).log(0)
    log.write_text("Progress: 1% loss 0.9\n")
    job = poll(run)
    assert (job.step, job.total_steps, job.step_unit) == (1, 100, "percent")
    with log.open("a") as file:
        file.write("epoch 3 loss 0.5\n")

    job = poll(run)

    assert (job.step, job.total_steps, job.step_unit) == (3, None, "epoch")


@pytest.mark.parametrize(("unit", "name"), [("percent", "percent_per_s"), ("epoch", "epochs_per_s")])
def test_a_speed_is_named_by_what_is_counted(unit, name):
    rate = StepRate()
    points: list[Point] = []
    for step, now_s in ((10, 0.0), (20, 5.0)):
        rate.note(step, now_s, points, unit)

    assert [(point.name, point.value) for point in points] == [(name, 2.0)]


def test_the_end_of_a_trial_does_not_move_the_step_of_its_training(run, home):
    end = "[I 2026-01-02 10:00:00,123] Trial 3 finished with value: 0.91 and parameters: {'x': 0.3}."
    home.job(run.job_id).attempt(run.number).log(0).write_text(f"step 500 loss 0.5\n{end}\n")

    job = poll(run)

    assert (job.step, stored(home, run, "value")) == (500, [0.91])


def test_state_of_printed_lines_survives_a_restart_of_the_agent(run):
    log = make_folder(run).log(0)
    log.write_text("Epoch | Step | Loss\nEpoch 1/5\nstep 100/100 loss 0.5\nEpoch 2/5\n")
    poll(run)
    with log.open("a") as file:
        file.write("step 50/100 loss 0.4\n")

    assert poll(run).step == 150


def test_printed_numbers_are_read_to_the_last_line_when_the_run_is_over(run, home):
    """A million lines in three seconds: only the first chunk was read, so the page stood at an eighth of the way."""
    lines = "".join(f"batch {number} loss {1 / number:.6f}\n" for number in range(1, 100_001))
    make_folder(run).log(0).write_text(lines + "batch 100001 loss 0.5")
    assert len(lines) > 4 * follow.MOST_LOG_BYTES

    reader = follower(run)
    while reader.poll():
        pass
    assert Job.objects.get().step == 100_000
    while reader.poll(at_end=True):
        pass
    reader.close()

    assert Job.objects.get().step == 100_001
    assert stored_seq(home.job(run.job_id).metrics) >= 100_001


@pytest.mark.code("B47")
def test_nan_loss_is_stored_as_text_and_reported_once(run):
    write(run, '{"step": 7, "loss": NaN}', '{"step": 8, "loss": Infinity}')
    poll(run)
    write(run, '{"step": 9, "loss": NaN}')

    job = poll(run)

    assert job.last_values["loss"] == "nan"
    assert job.diverged_step == 7
    said = [event.reason for event in job.events.of(Happened.DIVERGED)]
    assert list(said) == ["loss became NaN or infinite at step 7: the training diverged."]
    json.loads(json.dumps(job.last_values, allow_nan=False))


@pytest.mark.parametrize(
    "line",
    [
        "x" * (10 * 2**20),  # B52
        '{"step": 18446744073709551615, "loss": 1}',  # B48
        '{"step": -9223372036854775809, "loss": 1}',
        '{"step": 1.5, "loss": 1e400}',
        '{"event": "resumed", "step": 18446744073709551615}',
        '{"event": "resumed", "step": true}',
        '{"event": "fallback", "from_step": 1, "to_step": null, "reason": "\\ud800 \\u0000 half a pair"}',
        '{"event": ["x"], "step": {}}',
        '{"total_steps": 9223372036854775807, "step": 1}',
        '{"\\ud800": 1, "step": 1}',
        "[1, 2]",
        "\x00\x01",
    ],
)
def test_no_line_can_hurt_the_lines_after_it(run, home, line):
    write(run, line, {"step": 5, "loss": 0.5})

    poll(run)

    assert stored(home, run)[-1] == 0.5


def test_what_is_printed_cannot_name_more_steps_than_the_database_can_hold(run):
    make_folder(run).log(0).write_text(f"epoch 1/{10**17} step 5/{10**17} loss 1.0\n")

    job = poll(run)

    assert job.total_steps is None or job.total_steps < 2**63


@pytest.mark.code("B50")
def test_too_many_metric_names_leave_the_row_small(run):
    write(run, *({"step": 1, f"m{number}": 1.0} for number in range(300)))

    assert len(poll(run).last_values) == 200


def test_a_metrics_file_that_became_a_link_is_not_read(run, home, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1, "loss": 1.0}\n')
    metrics = make_folder(run).metrics
    metrics.unlink()
    metrics.symlink_to(secret)

    assert poll(run).step is None


def test_second_attempt_begins_its_own_columns(run, home, make_attempt):
    write(run, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})
    poll(run)
    device = run.leases.get().device
    lifecycle.end(run, lifecycle.Ending(ExitKind.PREEMPTED, sentence_only(""), run.created_at))
    second = make_attempt(Job.objects.get(), state=JobState.RUNNING, devices=[device])
    make_folder(second)
    write(second, {"step": 2, "loss": 0.9})

    job = poll(second)

    assert stored(home, run) == [2.0, 0.9]
    assert job.metric_seq == 3
    assert Attempt.objects.get(pk=run.pk).last_step == 2


def test_event_files_of_an_unchanged_script_become_its_curves(run, home):
    """TensorBoard's file, byte by byte: an Event with wall_time, step and one simple_value."""
    folder = home.job(run.job_id).work / "runs" / "a"
    folder.mkdir(parents=True)
    value = b"\x0a\x04loss" + b"\x15" + struct.pack("<f", 0.5)
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10\x07" + b"\x2a" + bytes([len(summary)]) + summary
    head = struct.pack("<Q", len(event))
    record = head + struct.pack("<I", masked_crc(head)) + event + struct.pack("<I", masked_crc(event))
    (folder / "events.out.tfevents.1.host").write_bytes(record)
    make_folder(run).log(0).write_text("step 3 loss 9.0\n")

    job = poll(run)
    poll(run, at_end=True)

    assert (job.step, job.last_values["loss"]) == (7, 0.5)
    assert stored(home, run) == [0.5]


def test_a_printed_line_that_the_reader_stumbles_over_is_passed_over(run, home):
    printed = "epoch 1/3 loss 0.5\nepoch 1/3 step 2/30 loss 0.4\n"
    home.job(run.job_id).attempt(run.number).log(0).write_text(printed)
    run.followed = {"parser": {"muting": {"lines": "as another version might count"}}}
    run.save()

    poll(run)

    run.refresh_from_db()
    assert run.followed["stdout"] == len(printed)
