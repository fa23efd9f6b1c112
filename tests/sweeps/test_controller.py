"""The controller against a real database: trials are jobs, and nothing happens twice however often it is asked."""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.db import connection, transaction
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.parts import forms
from orchestrator.exceptions import Conflict, Malformed
from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.submission import clones
from orchestrator.models import (
    AdminState,
    Attempt,
    Checkpoint,
    Device,
    ExitKind,
    Health,
    Job,
    JobState,
    MemberRole,
    RungReport,
    Sweep,
    SweepState,
    SweepTrial,
)
from orchestrator.sentences import say_json
from orchestrator.sharing import projects
from orchestrator.store.metrics.writer import MetricWriter, Point
from orchestrator.sweeps import asking, controller, creation, pausing
from orchestrator.sweeps.core import suggest as suggesting
from orchestrator.sweeps.ending import stop
from orchestrator.sweeps.history_rows import front_of, search_of

BODY = {
    "job": {"source": {"text": "print(1)\n"}, "total_steps": 18},
    "set": ["lr=log:1e-5..1e-1", "wd=0,0.1"],
    "metric": "val/loss",
    "direction": "minimize",
    "budget": {"trials": 6},
    "max_width": 3,
    "seed": 1,
}


@pytest.fixture(autouse=True)
def _devices(home, make_device):
    for index in range(4):
        make_device(index)


@pytest.fixture
def make_sweep(ada) -> Callable[..., Sweep]:
    def make(**fields: Any) -> Sweep:
        return creation.create(ada, asking.parse({**BODY, **fields})).sweep

    return make


class Trials:
    """Plays the scheduler and the scripts of a sweep: starts jobs, writes metrics and ends attempts."""

    def __init__(self, sweep: Sweep, home, devices) -> None:
        self.sweep, self.home, self.devices = sweep, home, devices

    def advance(self) -> None:
        """Twice, since a wake-up may come twice; the second one changes nothing."""
        controller.advance(self.sweep.pk)
        before = self.rows()
        controller.advance(self.sweep.pk)
        waits = Job.objects.filter(trial__sweep=self.sweep, state=JobState.QUEUED).exists()
        assert not waits or self.rows() == before
        self.sweep.refresh_from_db()

    def rows(self) -> list[tuple[Any, ...]]:
        reports = list(RungReport.objects.order_by("pk").values_list("trial__number", "rung", "value"))
        return [*SweepTrial.objects.values_list("number", "state", "target", "job__state"), *reports]

    def start_all(self) -> None:
        for trial in SweepTrial.objects.filter(sweep=self.sweep, job__state=JobState.QUEUED):
            self.start(trial.number)

    def start(self, number: int) -> Attempt:
        job = self.job(number)
        busy = Attempt.objects.live().values("leases__device")
        device = next(one for one in self.devices if one.pk not in [each["leases__device"] for each in busy])
        attempt = lifecycle.start(job, [(device, None)], nonce="0" * 32, now=timezone.now())
        lifecycle.claim_launch(attempt, timezone.now())
        lifecycle.run(attempt, started_at=timezone.now())
        return attempt

    def job(self, number: int) -> Job:
        return SweepTrial.objects.get(sweep=self.sweep, number=number).job

    def attempt(self, number: int) -> Attempt:
        return Attempt.objects.live().get(job=self.job(number))

    def report(self, number: int, value: float, *steps: int, name: str = "val/loss") -> None:
        self.report_all(number, {name: value}, *steps)

    def report_all(self, number: int, values: dict[str, float], *steps: int) -> None:
        job = self.job(number)
        newest = Attempt.objects.filter(job=job).order_by("-number")[0].number
        writer = MetricWriter(self.home.job(job.pk).metrics, newest, 0.0, None)
        points = [Point(name, step, float(step), value) for step in steps for name, value in values.items()]
        writer.append(points)
        writer.flush()
        writer.close()

    def keep_checkpoint(self, number: int, step: int) -> None:
        Checkpoint.objects.create(
            job=self.job(number), attempt_number=1, step=step, name=f"step{step}", source="script",
            size_bytes=1, created_at=timezone.now(),
        )  # fmt: skip

    def end(self, number: int, kind: ExitKind = ExitKind.OK, **fields: Any) -> None:
        how = fact(Ended.FINISHED) if kind == ExitKind.OK else fact(Ended.STOPPED, reason="preempt")
        lifecycle.end(self.attempt(number), Ending(kind=kind, how=how, at=timezone.now(), **fields))

    def state(self, number: int) -> tuple[str, str]:
        trial = SweepTrial.objects.select_related("job").get(sweep=self.sweep, number=number)
        return trial.state, trial.job.state


@pytest.fixture
def play(home) -> Callable[[Sweep], Trials]:
    return lambda sweep: Trials(sweep, home, list(Device.objects.order_by("index")))


def test_a_sweep_grows_only_while_no_trial_waits_for_devices(make_sweep, play):
    trials = play(make_sweep())

    trials.advance()
    assert SweepTrial.objects.count() == 1
    trials.start(0)
    trials.advance()
    trials.start(1)
    trials.advance()
    trials.start(2)
    trials.advance()

    assert SweepTrial.objects.count() == 3  # its greatest width


def test_trials_go_on_in_their_project_after_the_owner_left_it(ada, bob, make_sweep, play):
    project = projects.create(bob, "paper")
    projects.set_member(bob, project, ada.username, MemberRole.MEMBER)
    job: Any = BODY["job"]
    sweep = make_sweep(job={**job, "project": "paper"})
    trials = play(sweep)
    trials.advance()
    trials.start(0)
    projects.drop_member(ada, project, ada.username)

    trials.advance()

    sweep.refresh_from_db()
    assert sweep.state == SweepState.RUNNING, say_json(sweep.why)
    assert list(SweepTrial.objects.values_list("job__project", flat=True)) == ["paper", "paper"]


def test_settings_reach_the_script_as_arguments(make_sweep, play):
    job = {"source": {"text": "print(1)\n"}, "args": ["--rate={lr}", "{checkpoint}"]}
    play(make_sweep(job=job)).advance()

    settings, args = SweepTrial.objects.values_list("settings", "job__spec_fields__args").get()

    assert args == [f"--rate={settings['lr']!r}", "{checkpoint}", "--wd", str(settings["wd"])]


def test_rate_that_follows_the_batch_reaches_the_script_in_proportion(make_sweep, play):
    play(make_sweep(set=["lr=1e-3..1e-2*batch/32"], space={"batch": 64})).advance()

    settings, args = SweepTrial.objects.values_list("settings", "job__spec_fields__args").get()

    given = dict(zip(args[::2], args[1::2], strict=True))
    assert given["--batch"] == "64"
    assert float(given["--lr"]) == pytest.approx(2 * settings["lr"], rel=1e-5)


def test_ready_space_is_searched_and_its_settings_may_be_given_otherwise(ada):
    asked = {**BODY, "set": ["batch-size=8,64"], "ready": "lr-batch"}

    sweep = creation.create(ada, asking.parse(asked)).sweep

    assert sweep.space["batch-size"] == {"type": "categorical", "choices": [8, 64]}
    assert sweep.space["lr"]["scale"] == {"by": "batch-size", "base": 32.0, "rule": "linear"}


def test_settings_reach_the_script_as_variables(make_sweep, play):
    play(make_sweep(hand_over="env")).advance()

    settings, env = SweepTrial.objects.values_list("settings", "job__spec_fields__env").get()

    assert float(env["LR"]) == settings["lr"]
    assert env["WD"] == str(settings["wd"])


def test_the_worst_of_three_is_paused_at_its_rung_and_resumed_when_it_leads(make_sweep, play):
    trials = play(make_sweep())
    for number, value in enumerate([1.0, 3.0, 2.0]):
        trials.advance()
        trials.start(number)
        trials.keep_checkpoint(number, 1)
        trials.report(number, value, 1)
    trials.advance()

    assert trials.state(0) == ("running", "running")
    assert trials.state(2) == ("paused", "stopping")
    trials.end(2, ExitKind.PREEMPTED)
    assert trials.state(2) == ("paused", "held")
    assert "Paused by its sweep at step 1" in trials.job(2).reason

    trials.advance()  # the place is free: another one begins
    for number, value in ((3, 8.0), (4, 9.0)):
        trials.advance()
        trials.start(number)
        trials.keep_checkpoint(number, 1)
        trials.report(number, value, 1)
        trials.advance()
        trials.end(number, ExitKind.PREEMPTED)
    trials.start(5)
    RungReport.objects.filter(trial__number=0).update(value=99.0)  # now trial 2 leads
    trials.advance()

    assert trials.state(2) == ("running", "queued")
    assert SweepTrial.objects.get(number=2).target == 3


def test_a_script_without_checkpoints_is_stopped_for_good(make_sweep, play):
    trials = play(make_sweep())
    for number, value in enumerate([1.0, 3.0]):
        trials.advance()
        trials.start(number)
        trials.report(number, value, 1)
    trials.advance()

    assert trials.state(1) == ("stopped", "stopping")
    assert "others lead there" in Job.objects.get(trial__number=1).reason


def test_a_trial_that_ends_while_it_is_paused_keeps_its_end(make_sweep, play):
    trials = play(make_sweep())
    for number, value in enumerate([1.0, 3.0]):
        trials.advance()
        trials.start(number)
        trials.keep_checkpoint(number, 1)
        trials.report(number, value, 1)
    trials.advance()
    trials.report(1, 0.5, *range(2, 19))
    trials.end(1)

    trials.advance()

    assert trials.state(1) == ("ended", "succeeded")
    assert RungReport.objects.get(trial__number=1, rung=18).value == 0.5


def test_the_budget_of_trials_ends_the_sweep(make_sweep, play):
    trials = play(make_sweep(budget={"trials": 2}))
    for number in range(2):
        trials.advance()
        trials.start(number)
        trials.report(number, 1.0, *range(1, 19))
        trials.end(number)
    trials.advance()

    assert (trials.sweep.state, SweepTrial.objects.count()) == (SweepState.ENDED, 2)
    assert say_json(trials.sweep.why) == "All 2 trials of its budget have run."


def test_device_time_below_one_trial_ends_the_sweep_and_says_that_it_was_too_little(make_sweep, play):
    trials = play(make_sweep(budget={"device_hours": 0.001}, max_width=1))
    trials.advance()
    trials.start(0)
    Job.objects.filter(trial__sweep=trials.sweep).update(attained_gpu_s=10.0)
    trials.advance()

    assert trials.sweep.state == SweepState.ENDED
    assert "No trial ended within it; give it more." in say_json(trials.sweep.why)


def test_a_larger_budget_continues_an_ended_sweep(ada, make_sweep, play):
    trials = play(make_sweep(budget={"trials": 1}))
    trials.advance()
    trials.start(0)
    trials.report(0, 1.0, *range(1, 19))
    trials.end(0)
    trials.advance()

    creation.update(ada, trials.sweep, {"trials": 3})
    trials.advance()

    assert trials.sweep.state == SweepState.RUNNING
    assert SweepTrial.objects.count() == 2


def test_a_metric_that_never_comes_is_told_with_the_names_that_came(make_sweep, play):
    trials = play(make_sweep())
    trials.advance()
    trials.start(0)
    trials.report(0, 1.0, 1, 2, name="validation_loss")
    trials.end(0)
    trials.advance()

    assert trials.sweep.state == SweepState.FAILED
    assert say_json(trials.sweep.why) == (
        "Trial 0 ended without the metric 'val/loss'. It reported validation_loss; choose one of these."
    )


def fail(trials: Trials, number: int, message: str, kind: ExitKind = ExitKind.USER_ERROR) -> None:
    failure = {"rank": 0, "exception": "ValueError", "message": message}
    trials.advance()
    trials.start(number)
    trials.end(number, kind, first_failure=failure, retriable=False)
    trials.advance()


def test_a_trial_that_reports_nothing_ends_no_sweep_in_which_another_one_reports(make_sweep, play):
    trials = play(make_sweep())
    trials.advance()
    trials.start(0)
    trials.advance()
    trials.start(1)
    trials.report(1, 1.0, 0)  # before its first rung
    trials.end(0)
    trials.advance()

    assert trials.state(0) == ("failed", "succeeded")
    assert trials.state(1) == ("running", "running")
    assert trials.sweep.state == SweepState.RUNNING, say_json(trials.sweep.why)


def test_three_equal_errors_in_a_row_stop_the_sweep(make_sweep, play):
    trials = play(make_sweep(max_width=1))
    for number in range(3):
        fail(trials, number, f"no file at 0x{number}f")

    assert trials.sweep.state == SweepState.FAILED
    assert say_json(trials.sweep.why) == (
        "3 trials in a row failed with the same error: ValueError: no file at 0x2f"
    )


def test_three_trials_that_run_out_of_time_without_a_value_stop_the_sweep(make_sweep, play):
    trials = play(make_sweep(max_width=1))
    for number in range(3):
        trials.advance()
        trials.start(number)
        trials.end(number, ExitKind.TIMEOUT)
        trials.advance()

    assert trials.state(2) == ("stopped", "timed_out")
    assert all(trial.error for trial in SweepTrial.objects.all())
    assert trials.sweep.state == SweepState.FAILED
    assert "3 trials in a row failed with the same error" in say_json(trials.sweep.why)


def test_trials_that_run_out_of_time_after_a_value_go_on(make_sweep, play):
    trials = play(make_sweep(max_width=1))
    for number in range(4):
        trials.advance()
        trials.start(number)
        trials.report(number, 1.0 - number / 10, 1, 2, 3)
        trials.end(number, ExitKind.TIMEOUT)
        trials.advance()

    assert trials.sweep.state == SweepState.RUNNING
    assert SweepTrial.objects.get(number=0).error


def test_a_failed_trial_is_told_as_the_worst_value(make_sweep, play):
    trials = play(make_sweep(max_width=1))
    fail(trials, 0, "lr too large")

    assert trials.state(0) == ("failed", "failed")
    assert list(RungReport.objects.values_list("trial__number", "rung", "value")) == [(0, 1, None)]
    assert SweepTrial.objects.count() == 2


def test_a_fault_of_the_machine_is_not_told_and_costs_no_trial(make_sweep, play):
    trials = play(make_sweep(max_width=1, budget={"trials": 1}))
    fail(trials, 0, "", ExitKind.INFRA)

    assert SweepTrial.objects.get(number=0).lost
    assert not RungReport.objects.exists()
    assert SweepTrial.objects.count() == 2


def test_trials_that_the_machine_takes_one_after_another_end_the_sweep(make_sweep, play):
    trials = play(make_sweep(max_width=1, budget={"trials": 1}))
    errors = [f"part {letter * 3} is broken" for letter in "abcdefghi"]
    for number, error in enumerate(errors):
        fail(trials, number, error, ExitKind.INFRA)
    assert trials.sweep.state == SweepState.RUNNING, say_json(trials.sweep.why)

    fail(trials, len(errors), "nothing works", ExitKind.INFRA)

    assert trials.sweep.state == SweepState.FAILED
    assert say_json(trials.sweep.why) == (
        "The machine failed 10 trials in a row, the last one with: ValueError: nothing works"
    )


def test_a_trial_in_between_shows_that_the_machine_works(make_sweep, play):
    trials = play(make_sweep(max_width=1, budget={"trials": 3}))
    for number in range(12):
        fail(
            trials, number, chr(ord("a") + number) * 3, ExitKind.USER_ERROR if number == 6 else ExitKind.INFRA
        )

    assert trials.sweep.state == SweepState.RUNNING, say_json(trials.sweep.why)


def test_a_sampler_that_fails_is_said_and_tried_again(make_sweep, play, monkeypatch, caplog):
    def broken(search, history, number):
        raise np.linalg.LinAlgError("the matrix is not positive definite")

    trials = play(make_sweep(max_width=2))
    with monkeypatch.context() as patch:
        patch.setitem(suggesting._SAMPLERS, trials.sweep.sampler, broken)
        trials.advance()

    assert (trials.sweep.state, SweepTrial.objects.count()) == (SweepState.RUNNING, 0)
    assert "the matrix is not positive definite" in say_json(trials.sweep.why)
    assert "LinAlgError" in caplog.text

    trials.advance()
    assert SweepTrial.objects.count() == 1
    assert trials.sweep.why == {}


@pytest.mark.parametrize(
    ("progress", "longest"),
    [
        ({"step": 18, "total_steps": 18}, 18),
        ({"step": 18, "total_steps": 24}, 24),
        ({"step": 3, "total_steps": 4}, 24),  # the progress counts epochs
        ({"step": 18, "total_steps": 120}, 18),  # a limit that no training reaches
        ({"step": 18, "total_steps": None}, 18),
    ],
    ids=str,
)
def test_a_training_that_stops_early_tells_the_length_of_a_whole_one(make_sweep, play, progress, longest):
    trials = play(make_sweep(max_width=1, job={"source": {"text": "print(1)\n"}}))
    trials.advance()
    trials.start(0)
    trials.report(0, 1.0, *range(1, 19))
    Job.objects.filter(pk=trials.job(0).pk).update(**progress)
    trials.end(0)
    trials.advance()

    assert trials.sweep.longest == longest


def test_stopping_a_sweep_cancels_its_open_trials(make_sweep, play):
    trials = play(make_sweep())
    trials.advance()
    trials.start(0)
    trials.advance()
    stop(trials.sweep, by="ada")

    assert trials.state(0) == ("stopped", "stopping")
    assert trials.state(1) == ("stopped", "cancelled")
    with pytest.raises(Conflict):
        creation.update(trials.sweep.owner, trials.sweep, {"trials": 9})


def test_a_paused_sweep_holds_what_waits_and_stops_the_others_at_their_rung(make_sweep, play):
    trials = play(sweep := make_sweep())
    trials.advance()
    trials.start_all()
    trials.advance()
    trials.keep_checkpoint(0, 1)
    waiting = trials.sweep.trials.count() - 1
    pausing.pause(sweep, by="ada")
    trials.report(0, 0.5, 1)
    trials.advance()

    assert trials.state(waiting) == ("running", "held")
    assert trials.state(0) == ("paused", "stopping")  # it led, and would have gone on
    trials.end(0, ExitKind.SIGNAL)
    count = trials.sweep.trials.count()
    trials.advance()
    assert trials.sweep.trials.count() == count
    assert trials.sweep.state == SweepState.PAUSED

    pausing.resume(sweep)

    assert trials.state(waiting) == ("running", "queued")
    assert trials.state(0) == ("running", "queued")


def test_a_part_that_dies_before_the_commit_leaves_nothing_and_the_next_one_does_the_same(make_sweep, play):
    trials = play(make_sweep())
    lost: list[Any] = []

    def dies() -> None:
        with transaction.atomic():
            controller.advance(trials.sweep.pk)
            lost.append(SweepTrial.objects.get().settings)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dies()
    assert not Job.objects.exists()

    trials.advance()

    assert [SweepTrial.objects.get().settings] == lost


def test_the_sequence_of_suggestions_follows_from_the_seed(make_sweep, play):
    sequences = []
    for _ in range(2):
        trials = play(make_sweep(max_width=1, budget={"trials": 12}))
        for number in range(11):
            trials.advance()
            trials.start(number)
            lr = SweepTrial.objects.get(sweep=trials.sweep, number=number).settings["lr"]
            trials.report(number, abs(lr - 0.001), *range(1, 19))
            trials.end(number)
        trials.advance()
        sequences.append(list(trials.sweep.trials.order_by("number").values_list("settings", flat=True)))

    assert len(sequences[0]) == 12
    assert sequences[0] == sequences[1]


@pytest.mark.parametrize(
    ("fields", "field", "part"),
    [
        ({"direction": None}, "direction", "minimize"),
        ({"budget": {}}, "budget", "trials, device_hours or both"),
        ({"budget": {"trials": 0}}, "budget.trials", "greater than or equal to 1"),
        ({"budget": {"device_hours": 0}}, "budget.device_hours", "greater than 0"),
        ({"budget": {"trials": 10_001}}, "budget.trials", "10000"),
        ({"set": ["lr=1..0"]}, "space", "empty"),
        ({"set": [], "space": {"lr": {"type": "flot"}}}, "space", "flot"),
        ({"space": {"lr": [1, 2]}}, "space", "lr is in space and in set"),
        ({"ready": "lr-rang"}, "space", "there are lr-range, lr-batch"),
        ({"set": [], "space": {}}, "space", "settings by name"),
        ({"job": {"source": {"text": "1"}, "array": 3}}, "job", "array"),
        ({"min_width": 9}, "min_width", "more than max_width"),
        ({"hand_over": "env", "set": ["path=a,b"]}, "space", "PATH"),
        (
            {"job": {"source": {"text": "1"}, "args": ["{m}"]}, "set": ["o=a,b", "m=0..1@o=a"]},
            "job",
            "only for some",
        ),
    ],
)
def test_a_sweep_that_cannot_work_is_refused_with_its_field(ada, fields, field, part):
    with pytest.raises(Malformed) as error:
        creation.create(ada, asking.parse({**BODY, **fields}))
    assert field in error.value.fields
    assert part in error.value.fields[field][0]


def test_a_missing_direction_says_what_to_give(ada):
    body = {name: value for name, value in BODY.items() if name != "direction"}
    with pytest.raises(Malformed, match="direction: give minimize or maximize"):
        asking.parse(body)


def end_whole(trials, number: int, value: float, other: float | None) -> None:
    """A trial that trains to its end and reports two metrics."""
    trials.start(number)
    trials.report_all(number, {"val/loss": value} | ({} if other is None else {"params": other}), 18)
    trials.end(number)
    trials.advance()


SEVERAL = {
    "metric": None,
    "direction": None,
    "metrics": [
        {"name": "val/loss", "direction": "minimize"},
        {"name": "params", "direction": "maximize"},
    ],
}


def test_several_metrics_are_told_together_and_no_trial_is_stopped_early(make_sweep, play):
    sweep = make_sweep(**SEVERAL, budget={"trials": 3})
    trials = play(sweep)
    trials.advance()
    for number, (value, other) in enumerate([(1.0, 5.0), (2.0, 9.0), (3.0, 7.0)]):
        end_whole(trials, number, value, other)

    reports = RungReport.objects.order_by("pk")
    assert list(reports.values_list("trial__number", "rung", "value", "further")) == [
        (0, 18, 1.0, [5.0]), (1, 18, 2.0, [9.0]), (2, 18, 3.0, [7.0]),
    ]  # fmt: skip
    assert [report.trial.number for report in front_of(sweep, reports)] == [0, 1]
    assert trials.sweep.state == SweepState.ENDED


def test_a_metric_that_comes_after_the_last_step_counts(make_sweep, play):
    trials = play(make_sweep(**SEVERAL))
    trials.advance()
    trials.start(0)
    trials.report(0, 1.0, *range(1, 19))
    trials.advance()
    trials.report_all(0, {"val/loss": 1.0, "params": 0.9}, 18)
    trials.end(0)
    trials.advance()

    assert list(RungReport.objects.values_list("rung", "value", "further")) == [(18, 1.0, [0.9])]


def test_a_further_metric_that_never_comes_is_told_with_the_names_that_came(make_sweep, play):
    trials = play(make_sweep(**SEVERAL))
    trials.advance()

    end_whole(trials, 0, 1.0, None)

    assert trials.sweep.state == SweepState.FAILED
    assert say_json(trials.sweep.why) == (
        "Trial 0 ended without the metric 'params'. It reported val/loss; choose one of these."
    )


def test_a_sweep_ends_where_more_device_time_is_expected_to_gain_too_little(ada, make_sweep, play):
    rule = {"device_hours": 0.5, "gain": 0.01}
    trials = play(make_sweep(budget={"trials": 100}, stop_when=rule, early_stopping=False))
    trials.advance()
    for number in range(20):
        if trials.sweep.has_ended:
            break
        trials.start(number)
        trials.report(number, 1.0, 18)
        Job.objects.filter(pk=trials.job(number).pk).update(attained_gpu_s=360)
        trials.end(number)
        trials.advance()

    trials.sweep.refresh_from_db()
    assert trials.sweep.state == SweepState.ENDED
    assert say_json(trials.sweep.why).startswith(
        "Another 30 min of device time is expected to improve val/loss by 0, less than 0.01."
    )
    creation.update(ada, trials.sweep, {"name": "kept"})
    assert trials.sweep.state == SweepState.ENDED
    creation.update(ada, trials.sweep, {"stop_when": None})
    assert (trials.sweep.state, trials.sweep.least_gain) == (SweepState.RUNNING, None)


def test_a_warm_start_learns_from_ended_sweeps_of_the_same_code_and_space(ada, make_sweep, play):
    first = make_sweep(budget={"trials": 1})
    trials = play(first)
    trials.advance()
    end_whole(trials, 0, 1.0, None)
    make_sweep(set=["lr=log:1e-5..1e-1"], budget={"trials": 1})

    second = make_sweep(warm_start="auto")
    named = make_sweep(warm_start=first.short_id)

    assert second.learns_from == named.learns_from == [str(first.pk)]
    earlier = search_of(second).earlier
    assert [(number, trial.settings) for number, trial in earlier.trials.items()] == [
        (-1, SweepTrial.objects.get(sweep=first).settings)
    ]
    assert {report.trial for report in earlier.reports} == {-1}


def test_a_warm_start_from_another_search_is_refused_with_the_difference(ada, make_sweep):
    other = make_sweep(set=["lr=log:1e-5..1e-1"])

    for wanted, part in ((other.short_id, "still runs"), ("ffffffff", "there is no sweep")):
        with pytest.raises(Malformed) as caught:
            make_sweep(warm_start=wanted)
        assert part in caught.value.fields["warm_start"][0]
    stop(other, by="ada")
    with pytest.raises(Malformed) as caught:
        make_sweep(warm_start=other.short_id)
    assert "lacks wd" in caught.value.fields["warm_start"][0]


@pytest.mark.parametrize(("hand_over", "stays"), [("args", False), ("env", False), ("json", True)])
def test_a_clone_of_a_trial_keeps_its_settings_in_one_place(ada, make_sweep, play, hand_over, stays):
    play(make_sweep(hand_over=hand_over)).advance()
    job = SweepTrial.objects.get().job

    clone = clones.retry(ada, job, resume=False, changes={})

    assert "SWEEP_SETTINGS" in job.spec_fields["env"]
    assert ("SWEEP_SETTINGS" in clone.spec_fields.get("env", {})) == stays
    assert ("SWEEP_SETTINGS" in forms.texts_of(job, shown={})["env"]) == stays
    assert ("--lr" in clone.spec_fields.get("args", [])) == (hand_over == "args")


def test_a_sweep_that_is_asked_for_while_it_is_advanced_is_looked_at_once_more(
    make_sweep,
):
    sweep = make_sweep()
    answers = []

    def ask(*, created, **_):
        if created:
            answers.append(controller.advance(sweep.pk))

    post_save.connect(ask, sender=SweepTrial)
    try:
        with CaptureQueriesContext(connection) as queries:
            assert controller.advance(sweep.pk) is True
    finally:
        post_save.disconnect(ask, sender=SweepTrial)
    assert answers
    assert not any(answers)
    looks = [
        query for query in queries if query["sql"].startswith("UPDATE") and '"advanced_at"' in query["sql"]
    ]
    assert len(looks) == 2


def test_a_sweep_that_is_asked_for_again_and_again_lets_other_work_go_first(
    make_sweep, home, monkeypatch, django_capture_on_commit_callbacks
):
    sweep = make_sweep()
    sent: list[str] = []
    looks: list[str] = []
    monkeypatch.setattr(
        "orchestrator.live.wakeups._send_task", lambda name, *arguments, **named: sent.extend(arguments)
    )

    def ask(execute, sql, params, many, context):
        if sql.startswith("UPDATE") and '"advanced_at"' in sql:
            looks.append(sql)
            (home.root / "sweeps" / f"{sweep.pk}.asked").touch()
        return execute(sql, params, many, context)

    with django_capture_on_commit_callbacks(execute=True), connection.execute_wrapper(ask):
        assert controller.advance(sweep.pk) is True

    assert len(looks) == controller.LOOKS_AT_ONCE
    assert sent.count(str(sweep.pk)) == 1


def test_a_point_that_a_fault_of_the_machine_took_is_tried_again_by_a_grid(make_sweep, play):
    trials = play(make_sweep(set=["wd=0,0.1"], sampler="grid", max_width=1))
    fail(trials, 0, "", ExitKind.INFRA)
    for number in (1, 2):
        trials.advance()
        trials.start(number)
        trials.report(number, 1.0, *range(1, 19))
        trials.end(number)
    trials.advance()

    assert sorted(trial.settings["wd"] for trial in SweepTrial.objects.filter(lost=False)) == [0, 0.1]


def test_a_trial_that_a_person_released_trains_to_its_next_rung(make_sweep, play):
    trials = play(make_sweep(max_width=2))
    for number, value in enumerate([1.0, 3.0]):
        trials.advance()
        trials.start(number)
        trials.keep_checkpoint(number, 1)
        trials.report(number, value, 1)
    trials.advance()
    trials.end(1, ExitKind.PREEMPTED)
    assert trials.state(1) == ("paused", "held")

    lifecycle.release(trials.job(1), by="ada")
    trials.start(1)
    trials.advance()

    assert trials.state(1) == ("running", "running")
    assert SweepTrial.objects.get(number=1).target == 3


def test_a_long_new_name_does_not_end_a_sweep(ada, make_sweep, play):
    trials = play(make_sweep())
    creation.update(ada, trials.sweep, {"name": "n" * 200})

    trials.advance()

    assert trials.sweep.state == SweepState.RUNNING, say_json(trials.sweep.why)
    assert trials.job(0).name == f"{'n' * 180} [0]"


def test_a_negative_value_is_no_option_for_the_script(make_sweep, play):
    trials = play(make_sweep(set=["x=-1e-4..-1e-5"]))
    trials.advance()
    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float)

    assert -1e-4 <= parser.parse_args(trials.job(0).spec.args).x <= -1e-5


@pytest.mark.parametrize("away", [{"health": Health.MISSING}, {"admin_state": AdminState.DISABLED}], ids=str)
def test_a_sweep_outlives_devices_that_are_away_for_a_while(make_sweep, play, away):
    trials = play(make_sweep(max_width=2))
    trials.advance()
    trials.start(0)
    before = {field: getattr(Device.objects.first(), field) for field in away}
    Device.objects.update(**away)
    trials.advance()

    assert (trials.sweep.state, SweepTrial.objects.count()) == (SweepState.RUNNING, 1), say_json(
        trials.sweep.why
    )
    assert trials.state(0) == ("running", "running")
    assert say_json(trials.sweep.why).startswith("No further trial can be submitted: Pool default has")

    Device.objects.update(**before)
    trials.advance()
    assert SweepTrial.objects.count() == 2
    assert trials.sweep.why == {}


def test_a_sweep_whose_pool_has_too_few_devices_for_good_says_so(make_sweep, play):
    job: Any = BODY["job"]
    trials = play(make_sweep(max_width=2, job={**job, "gpus": 4}))
    trials.advance()
    Device.objects.filter(index=3).delete()
    lifecycle.cancel(trials.job(0), by="ada")
    trials.advance()

    assert trials.sweep.state == SweepState.FAILED
    assert "4 were asked for" in say_json(trials.sweep.why)
