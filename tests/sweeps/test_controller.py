"""The controller against a real database: trials are jobs, and nothing happens twice however often it is asked."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import Conflict, Malformed
from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import (
    Attempt,
    Checkpoint,
    ExitKind,
    Job,
    JobState,
    RungReport,
    Sweep,
    SweepState,
    SweepTrial,
)
from orchestrator.sentences import say_json
from orchestrator.store.metrics.writer import MetricWriter, Point
from orchestrator.sweeps import controller, creation
from orchestrator.sweeps.ending import stop

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
        return creation.create(ada, creation.parse({**BODY, **fields}))[0]

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
        job = self.job(number)
        newest = Attempt.objects.filter(job=job).order_by("-number")[0].number
        writer = MetricWriter(self.home.job(job.pk).metrics, newest, 0.0, None)
        writer.append([Point(name, step, float(step), value) for step in steps])
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
    from orchestrator.models import Device

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


def test_settings_reach_the_script_as_arguments(make_sweep, play):
    job = {"source": {"text": "print(1)\n"}, "args": ["--rate={lr}", "{checkpoint}"]}
    play(make_sweep(job=job)).advance()

    settings, args = SweepTrial.objects.values_list("settings", "job__spec_fields__args").get()

    assert args == [f"--rate={settings['lr']!r}", "{checkpoint}", "--wd", str(settings["wd"])]


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


def test_three_equal_errors_in_a_row_stop_the_sweep(make_sweep, play):
    trials = play(make_sweep(max_width=1))
    for number in range(3):
        fail(trials, number, f"no file at 0x{number}f")

    assert trials.sweep.state == SweepState.FAILED
    assert say_json(trials.sweep.why) == (
        "3 trials in a row failed with the same error: ValueError: no file at 0x2f"
    )


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
        creation.create(ada, creation.parse({**BODY, **fields}))
    assert field in error.value.fields
    assert part in error.value.fields[field][0]


def test_a_missing_direction_says_what_to_give(ada):
    body = {name: value for name, value in BODY.items() if name != "direction"}
    with pytest.raises(Malformed, match="direction: give minimize or maximize"):
        creation.parse(body)
