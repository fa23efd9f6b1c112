"""The agent's measure of neighbours: steps/s before one came, beside it, and after it left."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.agent.watches.neighbours import NeighbourWatch
from orchestrator.devices.types import DeviceProcess, Reading
from orchestrator.jobs.memory_claims import memory_key
from orchestrator.models import (
    Attempt,
    Checkpoint,
    Job,
    JobState,
    Lease,
    LoneRun,
    Pool,
    SchedulerNotes,
    Slowdown,
)
from orchestrator.scheduler import core, passes
from orchestrator.scheduler.passes.learning import learn
from orchestrator.scheduler.passes.neighbours import beside_now
from orchestrator.spec.job_spec import GIB
from tests.read_sentences import wait_sentence
from tests.scheduler.test_placement import read

BEGAN = timezone.now()


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


@pytest.fixture
def train(make_attempt, make_device):
    """Start a job with 20 GiB of device 0, or of the one given, that has done its first step."""
    made: list[Any] = []

    def start(name: str, *, device: Any = None, **fields: Any) -> Attempt:
        device = device or (made[0] if made else make_device(0))
        made.append(device)
        attempt: Attempt = make_attempt(
            state=JobState.RUNNING,
            devices=[device],
            memory_bytes=20 * GIB,
            name=name,
            spec={"args": ["--model", name], "gpu_memory_gib": 20},
            **fields,
        )
        Attempt.objects.filter(pk=attempt.pk).update(first_step_at=BEGAN)
        return attempt

    return start


class Clock:
    """Rounds of readings, with the steps that jobs report meanwhile."""

    def __init__(self) -> None:
        self.watch = NeighbourWatch()
        self.at_s = 0.0

    def run(self, seconds: float, *rates: tuple[Attempt, float], use: float = 90.0, foreign: int = 0) -> None:
        ends = self.at_s + seconds
        while self.at_s < ends:
            self.at_s += 1.0
            for attempt, rate in rates:
                job = Job.objects.get(pk=attempt.job_id)
                reported = BEGAN + timedelta(seconds=self.at_s)
                step = (job.step or 0) + rate
                Job.objects.filter(pk=job.pk).update(step=step, last_report_at=reported)
            leases = Lease.objects.active().select_related(
                "attempt__job__owner", "attempt__job__pool", "device"
            )
            self.watch.note([reading(use, foreign)], list(leases), BEGAN, self.at_s)


def reading(use: float, foreign: int = 0) -> Reading:
    outside = (DeviceProcess(7, foreign, "eve", "python", None),) if foreign else ()
    return Reading(
        device_id="sim-0",
        taken_at=0.0,
        used_bytes=foreign,
        total_bytes=80 * GIB,
        utilization_percent=use,
        processes=outside,
    )


def leave(attempt: Attempt) -> None:
    Lease.objects.filter(attempt=attempt).update(ended_at=BEGAN)


def slowdowns() -> dict[tuple[str, str], float]:
    """By the models of the two jobs."""
    works = {work: args[1] for work, args in _works()}
    return {(works[row.work], works[row.other]): row.slowdown for row in Slowdown.objects.all()}


def _works():
    return [(memory_key(job.spec_fields, job.bundle), job.spec_fields["args"]) for job in Job.objects.all()]


def test_slowdown_is_learned_from_the_steps_before_and_beside_a_neighbour(train):
    clock, vit = Clock(), train("vit")
    clock.run(20, (vit, 10), use=90)
    ner = train("ner")
    clock.run(20, (vit, 5), (ner, 3))
    leave(vit)
    clock.run(20, (ner, 4), use=40)
    leave(ner)
    clock.run(1)

    # ``ner`` began beside ``vit``, so its own pace is known only once it was alone.
    assert slowdowns() == {("vit", "ner"): pytest.approx(2.0), ("ner", "vit"): pytest.approx(4 / 3)}
    alone = {round(row.steps_per_s): row.use for row in LoneRun.objects.all()}
    assert alone == {4: pytest.approx(0.4), 10: pytest.approx(0.9)}


def test_long_measurements_are_kept_while_they_last(train):
    clock, vit = Clock(), train("vit")

    clock.run(150, (vit, 10))

    assert LoneRun.objects.get().runs == 2


@pytest.mark.parametrize(
    "spoiled",
    [{"seconds": 5}, {"rate": 0}, {"foreign": GIB}],
    ids=["too short", "no steps", "beside an external process"],
)
def test_measurement_that_says_nothing_is_not_kept(train, spoiled):
    clock, vit = Clock(), train("vit")

    clock.run(spoiled.get("seconds", 20), (vit, spoiled.get("rate", 10)), foreign=spoiled.get("foreign", 0))
    leave(vit)
    clock.run(1)

    assert not LoneRun.objects.exists()


def test_neighbour_that_still_starts_is_not_measured(train):
    clock, vit = Clock(), train("vit")
    clock.run(20, (vit, 10))
    ner = train("ner")
    Attempt.objects.filter(pk=ner.pk).update(first_step_at=None)

    clock.run(30, (vit, 5))

    assert not Slowdown.objects.exists()


def test_several_neighbours_at_once_blame_nobody(train):
    clock, vit = Clock(), train("vit")
    clock.run(20, (vit, 10))
    others = train("ner"), train("gpt")
    clock.run(20, (vit, 2), *((one, 1) for one in others))
    leave(vit)
    clock.run(1)

    assert not Slowdown.objects.exists()


def test_resumed_job_that_repeats_steps_begins_its_measurement_again(train):
    clock, vit = Clock(), train("vit")
    clock.run(20, (vit, 10))
    Job.objects.update(step=20)
    clock.run(20, (vit, 10))
    leave(vit)
    clock.run(1)

    assert LoneRun.objects.get().steps_per_s == pytest.approx(10.0)


def known(slowdown: float) -> None:
    """As the watch leaves it after both ran alone and, several times, beside each other."""
    works = [work for work, _ in _works()]
    for work in works:
        LoneRun.objects.create(
            device_name="Simulated GPU", work=work, use=0.5, steps_per_s=1.0, runs=5, seen_at=BEGAN
        )
    for work in works:
        other = next(one for one in works if one != work)
        Slowdown.objects.create(
            device_name="Simulated GPU", work=work, other=other, slowdown=slowdown, runs=99, seen_at=BEGAN
        )


def test_jobs_on_one_device_say_who_is_slower_beside_whom(train):
    vit, _ = train("vit"), train("ner")
    known(1.18)

    (told,) = beside_now(job=vit.job)

    assert (told.percent, told.measured, told.sentence) == (18, True, "vit is 18 % slower beside ner.")
    assert len(beside_now(device_id="sim-0")) == 2


def test_job_alone_or_beside_one_of_which_nothing_is_known_says_nothing(train):
    vit = train("vit")
    assert beside_now(job=vit.job) == []
    train("ner")
    assert beside_now(job=vit.job) == []


def test_pass_keeps_a_known_bad_pair_apart_and_tells_why(train, make_job):
    train("vit")
    ner = make_job(name="ner", spec={"args": ["--model", "ner"], "gpu_memory_gib": 20})
    known(1.9)
    read({"id": "sim-0", "used_bytes": 0, "foreign_bytes": 0})

    passes.run_pass()

    ner.refresh_from_db()
    assert (ner.state, ner.wait_code) == (JobState.QUEUED, "neighbours")
    assert "there is memory on simulated GPU 0" in wait_sentence(ner)

    Pool.objects.update(slowdown_limit=2.5)
    passes.run_pass()

    ner.refresh_from_db()
    assert ner.state == JobState.STARTING


def test_pass_moves_one_of_a_bad_pair_to_an_idle_device_and_its_history_says_so(train, make_device):
    running = train("vit"), train("ner")
    make_device(1)
    known(1.9)
    hours = timezone.now() - timedelta(hours=2)
    Lease.objects.update(started_at=hours)
    Job.objects.update(seen_to_resume=True, restart_cost_s=5.0, step=100, total_steps=10_000, steps_per_s=1.0)
    for attempt in running:
        Checkpoint.objects.create(
            job=attempt.job,
            attempt_number=1,
            name="step-100",
            source="script",
            size_bytes=1,
            created_at=timezone.now(),
        )
    read(*({"id": one, "used_bytes": 0, "foreign_bytes": 0} for one in ("sim-0", "sim-1")))

    passes.run_pass()

    moving = Job.objects.get(state=JobState.STOPPING)
    assert "is 89 % slower beside" in moving.reason
    assert "the pool allows 30 %: moves to a device that is idle." in moving.reason


def test_weights_are_learned_from_what_was_measured(train):
    train("vit"), train("ner")
    known(2.0)

    learn(BEGAN)

    fair, both = SchedulerNotes.objects.get().neighbour_weights
    assert both > core.FAIR_SHARE.both
    assert fair == pytest.approx(core.FAIR_SHARE.fair)
