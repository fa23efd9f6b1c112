"""Every address of a thing in each of its first states: what has no report, no output and no device fails nowhere.

The addresses come from the URL configuration, so a new one is asked as well.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from orchestrator.facts.endings import Ended
from orchestrator.facts.events import FederationFact, Happened, ServiceFact, SweepFact
from orchestrator.facts.record import fact
from orchestrator.federations import asking as asking_of_federations
from orchestrator.federations import creation as creation_of_federations
from orchestrator.jobs import lifecycle, promotion
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import (
    Attempt,
    Checkpoint,
    ExitKind,
    Federation,
    FederationState,
    Job,
    JobState,
    ModelVersion,
    Pool,
    Service,
    ServiceReplica,
    ServiceState,
    StopReason,
    Sweep,
    SweepState,
)
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.layout import Home
from orchestrator.sweeps import asking, controller, creation, pausing
from orchestrator.sweeps.ending import end, stop

JOB: dict[str, Any] = {"spec": {"total_steps": 10}}
SWEEP = {
    "job": {"source": {"text": "print(1)\n"}},
    "set": ["lr=log:1e-5..1e-1", "opt=adam,sgd"],
    "metrics": [{"name": "loss", "direction": "minimize"}],
    "budget": {"trials": 6, "device_hours": 1},
    "max_width": 2,
    "seed": 1,
}
SEVERAL = [{"name": "loss", "direction": "minimize"}, {"name": "accuracy", "direction": "maximize"}]
FEDERATION = {
    "model": "train.py:build_model",
    "sites": 3,
    "rounds": 1,
    "job": {"source": {"text": "def build_model(): ...\n"}},
}
# Parts of an address beside the id of the thing that it is about.
PARTS = {"filepath": "train.py", "step": "1", "action": "cancel", "attempt": "1", "number": "1"}
# What is asked of an address beside its bare self.
QUERIES = {
    "/jobs/{}/log": ("attempt=1&rank=0",),
    "/jobs/{}/log-place": ("attempt=1&rank=0&step=1", "at=0"),
    "/jobs/{}/file": ("path=train.py",),
    "/jobs/{}/report": ("format=html",),
    "/api/v1/jobs/{}/logs": ("attempt=1&rank=0", "tail=10"),
    "/api/v1/jobs/{}/logs/lines": ("attempt=1&rank=0",),
    "/api/v1/jobs/{}/logs/search": ("text=x", "q=x"),
    "/api/v1/jobs/{}/logs/merged": ("attempt=1",),
    "/api/v1/jobs/{}/logs/merged/search": ("text=x", "q=x"),
    "/api/v1/jobs/{}/metrics": ("names=loss", "max_points=10"),
    "/sweeps/{}": ("sort=number", "sort=-state", "sort=set.lr", "sort=further.0", "sort=time"),
    "/sweeps/{}/data": ("seen=x",),
    "/sweeps/{}/curves": ("trials=0,1",),
    "/api/v1/sweeps/{}/trials": ("format=csv",),
}


@dataclass(frozen=True)
class Thing:
    """What is asked for, and where it is shown."""

    id: str
    parameter: str  # of its own addresses
    lists: tuple[
        str, ...
    ]  # beginnings of the addresses that show many, and of its own where the parameter has a common name
    further: tuple[str, ...] = ()  # addresses that take it in their query

    @property
    def addresses(self) -> Iterator[str]:
        """Every address that names it or lists its kind, with what can be asked beside it."""
        for route in sorted(set(_routes(get_resolver().url_patterns, "/"))):
            names = [hit.rpartition(":")[2] for hit in re.findall(r"<([^>]+)>", route)]
            if not (
                self.parameter in names and "text" not in names if names else route.startswith(self.lists)
            ):
                continue
            if self.parameter == "name" and not route.startswith(self.lists):
                continue
            address = re.sub(r"<(?:\w+:)?(\w+)>", lambda hit: self._part(hit[1]), route)
            yield address
            yield from (f"{address}?{query}" for query in QUERIES.get(address.replace(self.id, "{}"), ()))
        yield from self.further

    def _part(self, name: str) -> str:
        return self.id if name == self.parameter else PARTS.get(name, "1")


def _routes(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[str]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern.url_patterns, route)
        elif not route.startswith("/admin/") and not re.search(r"[(^]", route):
            yield route


def failures(user: User, thing: Thing) -> dict[str, int]:
    """The addresses at which the server failed, with the status of each answer."""
    browser = Client(raise_request_exception=False)
    browser.force_login(user)
    answers = {address: browser.get(address).status_code for address in thing.addresses}
    assert list(answers.values()).count(200) >= 3, f"it is hardly shown: {answers}"
    return {address: status for address, status in answers.items() if status >= 500}


@pytest.fixture(autouse=True)
def _home(home):
    """The application looks for its folder of static files when it is loaded."""


# Jobs

BEGAN = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT)
STATES_OF_JOBS = [
    *("queued", "held", "backoff", "at a later time", *BEGAN, "unknown", *ENDED),
    *(f"{state} before it began" for state in ENDED),
]


@pytest.fixture
def play_job(make_job, make_attempt) -> Callable[[str], Job]:
    """A job in one of its states that has printed, reported and kept nothing."""

    def play(state: str) -> Job:
        if state == "at a later time":
            job: Job = make_job(**JOB, not_before=timezone.now() + timedelta(hours=1))
        elif state.endswith("before it began"):
            job = make_job(**JOB, state=state.split()[0], ended_at=timezone.now())
        elif state in {"queued", "held", "backoff"}:
            job = make_job(**JOB, state=state)
        elif state in BEGAN:
            job = make_attempt(state=JobState(state), **JOB).job
        else:
            attempt = make_attempt(state=JobState.RUNNING, **JOB)
            _leave(attempt, state)
            job = Job.objects.get(pk=attempt.job_id)
            assert job.state == state
        return job

    return play


def _leave(attempt: Attempt, state: str) -> None:
    """Bring a running attempt into a state after it."""
    if state == "unknown":
        lifecycle.lose_sight(attempt, why=fact(Happened.SUPERVISOR_SILENT, for_s=30))
        return
    if state == "cancelled":
        lifecycle.cancel(attempt.job, by="ada")
    if state == "timed_out":
        lifecycle.want_stop(
            attempt.job, StopReason.TIMEOUT, actor="agent", why=fact(Ended.STOPPED, reason="timeout")
        )
    kind = {
        "succeeded": ExitKind.OK,
        "failed": ExitKind.USER_ERROR,
        "cancelled": ExitKind.CANCELLED,
        "timed_out": ExitKind.TIMEOUT,
    }[state]
    how = fact(Ended.FINISHED) if kind == ExitKind.OK else fact(Ended.STOPPED, reason="cancel")
    lifecycle.end(attempt, Ending(kind=kind, how=how, at=timezone.now()))


def as_job(job: Job) -> Thing:
    further = (
        f"/submit?from={job.pk}",
        f"/sweeps/new?from={job.pk}",
        f"/compare?jobs={job.pk}",
        f"/share?jobs={job.pk}",
        "/queue",
        "/",
    )
    return Thing(str(job.pk), "job_id", ("/jobs", "/api/v1/jobs"), further)


@pytest.mark.parametrize("state", STATES_OF_JOBS)
def test_no_address_of_a_job_without_output_fails(ada, play_job, state):
    assert failures(ada, as_job(play_job(state))) == {}


# Sweeps


@pytest.fixture
def begin(ada, make_device) -> Callable[..., Sweep]:
    for index in range(2):
        make_device(index)

    def make(**fields: Any) -> Sweep:
        return creation.create(ada, asking.parse({**SWEEP, **fields})).sweep

    return make


def _trials_wait(sweep: Sweep, make_attempt: Any) -> None:
    controller.advance(sweep.pk)


def _trials_run(sweep: Sweep, make_attempt: Any) -> None:
    controller.advance(sweep.pk)
    for trial in sweep.trials.select_related("job"):
        make_attempt(trial.job, state=JobState.RUNNING)
    controller.advance(sweep.pk)


def _leave_all(sweep: Sweep, state: str) -> None:
    for attempt in Attempt.objects.live().filter(job__trial__sweep=sweep):
        _leave(attempt, state)


def _all_ended(sweep: Sweep, make_attempt: Any) -> None:
    _trials_run(sweep, make_attempt)
    _leave_all(sweep, "succeeded")
    controller.advance(sweep.pk)
    end(sweep, SweepState.ENDED, fact(SweepFact.STOPPED_BY, by="ada"))


def _all_failed(sweep: Sweep, make_attempt: Any) -> None:
    _trials_run(sweep, make_attempt)
    _leave_all(sweep, "failed")
    controller.advance(sweep.pk)
    end(sweep, SweepState.FAILED, fact(SweepFact.STOPPED_BY, by="ada"))


def _stopped(sweep: Sweep, make_attempt: Any) -> None:
    _trials_run(sweep, make_attempt)
    stop(sweep, by="ada")


STATES_OF_SWEEPS: dict[str, Callable[[Sweep, Any], None]] = {
    "just made": lambda sweep, make_attempt: None,
    "trials wait": _trials_wait,
    "trials run": _trials_run,
    "paused": lambda sweep, make_attempt: pausing.pause(sweep, by="ada"),
    "ended": _all_ended,
    "failed": _all_failed,
    "stopped": _stopped,
    "stopped before a trial": lambda sweep, make_attempt: stop(sweep, by="ada"),
}


def as_sweep(sweep: Sweep) -> Thing:
    further = (f"/share?sweep={sweep.pk}", f"/jobs/grid?sweep={sweep.pk}", "/jobs", "/jobs/rows")
    return Thing(str(sweep.pk), "sweep_id", ("/sweeps", "/api/v1/sweeps"), further)


@pytest.mark.parametrize("metrics", [SWEEP["metrics"], SEVERAL], ids=["one metric", "several"])
@pytest.mark.parametrize("state", STATES_OF_SWEEPS)
def test_no_address_of_a_sweep_without_a_report_fails(ada, begin, make_attempt, state, metrics):
    sweep = begin(metrics=metrics)
    STATES_OF_SWEEPS[state](sweep, make_attempt)
    sweep.refresh_from_db()

    assert failures(ada, as_sweep(sweep)) == {}


def test_no_address_of_a_first_trial_fails(ada, begin, make_attempt):
    sweep = begin()
    _trials_run(sweep, make_attempt)

    assert failures(ada, as_job(sweep.trials.first().job)) == {}


# Services, sessions, models, federated trainings


def _with_replica(service: Service, job: Job) -> None:
    ServiceReplica.objects.create(service=service, job=job, revision=1)


@pytest.mark.parametrize(
    "replica", ["none", "queued", "starting", "running", "failed", "failed before it began"]
)
@pytest.mark.parametrize("state", ServiceState)
def test_no_address_of_a_service_that_nobody_asked_fails(ada, make_service, play_job, state, replica):
    service = make_service(state=state)
    if state == ServiceState.FAILED:
        service.why = fact(ServiceFact.DIES_AGAIN, times=3, error="").as_json()
        service.save()
    if replica != "none":
        _with_replica(service, play_job(replica))

    assert failures(ada, Thing("digits", "name", ("/services", "/api/v1/services"))) == {}


@pytest.mark.parametrize("state", STATES_OF_JOBS)
def test_no_address_of_a_session_without_a_program_fails(ada, play_job, monkeypatch, state):
    monkeypatch.setitem(JOB, "spec", {"kind": "session", "program": "jupyter", "time_limit_s": 3600})
    job = play_job(state)

    thing = as_job(job)
    assert failures(ada, Thing(thing.id, "job_id", ("/sessions", "/api/v1/sessions"), thing.further)) == {}


@pytest.mark.parametrize("has_job", [True, False], ids=["its job is there", "its job is gone"])
def test_no_address_of_a_model_without_values_fails(home, ada, make_job, has_job):
    job = make_job(state=JobState.SUCCEEDED)
    model = promotion.promote(ada, _with_checkpoint(home, job), name="digits")
    if not has_job:
        ModelVersion.objects.filter(pk=model.pk).update(job=None)

    beginnings = ("/models", "/api/v1/models", "/datasets", "/api/v1/datasets")
    assert failures(ada, Thing("digits@1", "name", beginnings)) == {}


def _with_checkpoint(home: Home, job: Job) -> Job:
    folder = home.job(job.pk)
    folder.checkpoints.mkdir(parents=True)
    path = folder.checkpoints / "state.txt"
    path.write_text("weights")
    kept = GenerationStore(folder).capture([path], 1, None, lambda: True)
    assert kept is not None
    Checkpoint.objects.create(
        job=job,
        attempt_number=1,
        name=kept.name,
        source="script",
        size_bytes=kept.size_bytes,
        created_at=timezone.now(),
    )
    return job


@pytest.mark.parametrize("jobs", ["wait", "run", "have failed"])
@pytest.mark.parametrize("state", FederationState)
def test_no_address_of_a_federated_training_without_a_round_fails(
    ada, make_device, make_attempt, state, jobs
):
    Pool.objects.get_or_create(name="cpu")
    for index in range(4):
        make_device(index, kind="cpu", pool_id="cpu")
    federation = creation_of_federations.create(ada, asking_of_federations.parse(FEDERATION))
    for member in federation.members.select_related("job") if jobs != "wait" else ():
        attempt = make_attempt(member.job, state=JobState.RUNNING)
        if jobs == "have failed":
            _leave(attempt, "failed")
    Federation.objects.filter(pk=federation.pk).update(state=state)
    if state != FederationState.RUNNING:
        why = fact(FederationFact.STOPPED_BY, by="ada").as_json()
        Federation.objects.filter(pk=federation.pk).update(why=why)

    further = (f"/api/v1/federated/{federation.short_id}",)
    assert (
        failures(ada, Thing(str(federation.pk), "federation", ("/federated", "/api/v1/federated"), further))
        == {}
    )
