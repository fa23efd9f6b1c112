"""The timeline: who held which device, and who is expected to."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import DeviceSpan, ExitKind, Job, JobState, Lease, SchedulerTerm, Use


@pytest.fixture
def bars_of(client_of, ada):
    def ask(query: str = ""):
        return client_of(ada).send("GET", f"/timeline{query}").json()["bars"]

    return ask


def test_a_job_that_ended_is_a_bar_on_each_of_its_devices(make_attempt, make_device, bars_of):
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(0), make_device(1)], gpus=2)
    lifecycle.end(attempt, Ending(kind=ExitKind.OK, how=sentence_only("Finished."), at=timezone.now()))

    bars = bars_of()

    assert sorted((bar["device"], bar["rank"]) for bar in bars) == [("sim-0", 0), ("sim-1", 1)]
    assert all(not bar["planned"] and bar["end"] and bar["owner"] == "ada" for bar in bars)


def test_a_running_job_goes_on_for_as_long_as_its_steps_take(make_attempt, bars_of):
    now = timezone.now()
    make_attempt(
        state=JobState.RUNNING, step=100, total_steps=200, steps_per_s=1.0, last_report_at=now, colour=3
    )

    held, goes_on = bars_of()

    assert (held["planned"], goes_on["planned"], goes_on["colour"]) == (False, True, 3)
    assert held["end"] == goes_on["start"]
    left_s = (datetime.fromisoformat(goes_on["end"]) - now).total_seconds()
    assert left_s == pytest.approx(100, abs=1)


def test_a_running_job_of_which_nothing_is_known_has_no_end(make_attempt, bars_of):
    make_attempt(state=JobState.RUNNING)

    assert [bar["end"] is None for bar in bars_of()] == [False, True]


def test_a_time_limit_counts_from_the_start(make_attempt, bars_of):
    attempt = make_attempt(state=JobState.RUNNING, time_limit_s=3600.0)
    Lease.objects.update(started_at=timezone.now() - timedelta(minutes=50))

    end = datetime.fromisoformat(bars_of()[1]["end"])

    assert attempt.job.time_limit_s == 3600.0
    assert (end - timezone.now()).total_seconds() == pytest.approx(600, abs=2)


def test_a_waiting_job_stands_where_devices_are_expected_free_first(
    make_attempt, make_device, make_job, bars_of
):
    now = timezone.now()
    steps = {"step": 0, "steps_per_s": 1.0, "last_report_at": now}
    for index, total_steps in enumerate([3000, 60]):
        make_attempt(state=JobState.RUNNING, devices=[make_device(index)], total_steps=total_steps, **steps)
    waiting = make_job(
        start_earliest=now + timedelta(seconds=60), start_latest=now + timedelta(seconds=90), time_limit_s=600
    )

    bar = next(bar for bar in bars_of() if bar["job"] == str(waiting.pk))

    assert (bar["device"], bar["planned"], bar["rank"]) == ("sim-1", True, None)
    start, latest, end = (datetime.fromisoformat(bar[name]) for name in ("start", "start_latest", "end"))
    assert (latest - start, end - start) == (timedelta(seconds=30), timedelta(seconds=600))


def test_two_waiting_jobs_do_not_stand_on_the_same_device_at_once(make_device, make_job, bars_of):
    make_device(0)
    make_device(1)
    soon = timezone.now() + timedelta(seconds=10)
    for _ in range(2):
        make_job(start_earliest=soon, start_latest=soon, time_limit_s=600)

    assert sorted(bar["device"] for bar in bars_of()) == ["sim-0", "sim-1"]


def test_devices_that_are_kept_for_a_job_are_the_ones_it_stands_on(make_device, make_job, bars_of):
    for index in range(3):
        make_device(index)
    soon = timezone.now() + timedelta(seconds=10)
    job = make_job(start_earliest=soon, start_latest=soon)
    SchedulerTerm.objects.create(pk=1, reservations=[{"job": str(job.pk), "devices": ["sim-2"], "since": 0}])

    assert [bar["device"] for bar in bars_of()] == ["sim-2"]


def test_what_was_outside_the_window_is_left_out(make_attempt, bars_of):
    attempt = make_attempt(state=JobState.RUNNING)
    lifecycle.end(attempt, Ending(kind=ExitKind.OK, how=sentence_only("Finished."), at=timezone.now()))
    Lease.objects.update(
        started_at=timezone.now() - timedelta(hours=9), ended_at=timezone.now() - timedelta(hours=8)
    )

    assert bars_of() == []
    assert len(bars_of(f"?from={(timezone.now() - timedelta(hours=10)).timestamp()}")) == 1


def test_a_pool_is_asked_for_alone(make_attempt, make_pool, make_device, client_of, ada):
    make_attempt(devices=[make_device(0)])
    make_device(5, pool=make_pool("big"))

    answer = client_of(ada).send("GET", "/timeline?pool=big").json()

    assert ([each["id"] for each in answer["devices"]], answer["bars"]) == (["sim-5"], [])


def test_bob_sees_name_and_owner_of_a_bar_but_not_more(make_attempt, client_of, bob):
    make_attempt(state=JobState.RUNNING)

    bar = client_of(bob).send("GET", "/timeline").json()["bars"][0]

    assert (bar["name"], bar["owner"]) == ("digits", "ada")
    assert not {"args", "spec", "env", "reason", "last_values"} & bar.keys()


@pytest.mark.parametrize("query", ["?from=20&to=10", "?from=yesterday", "?to=-5", "?from=1e300", "?to=nan"])
def test_a_window_that_makes_no_sense_is_refused(query, client_of, ada):
    answer = client_of(ada).send("GET", f"/timeline{query}")

    assert answer.status_code == 400
    assert answer.json()["errors"]


def test_a_job_without_prediction_is_not_guessed(make_device, make_job, bars_of):
    make_device(0)
    make_job()

    assert (bars_of(), Job.objects.count()) == ([], 1)


def test_strangers_drains_and_faults_are_there_and_idle_times_are_not(make_device, client_of, ada):
    device = make_device(0)
    now = timezone.now()
    for minutes, use in ((50, Use.IDLE), (40, Use.FOREIGN), (30, Use.DRAINED)):
        DeviceSpan.objects.create(
            device=device,
            use=use,
            owner="carl" if use == Use.FOREIGN else "",
            started_at=now - timedelta(minutes=minutes),
            seen_at=now,
            ended_at=None if use == Use.DRAINED else now - timedelta(minutes=minutes - 10),
        )

    spans = client_of(ada).send("GET", "/timeline").json()["spans"]

    assert [(span["use"], span["owner"]) for span in spans] == [("drained", ""), ("foreign", "carl")]
    assert datetime.fromisoformat(spans[0]["end"]) >= now
