"""Plans: what a submit would lead to, without one."""

import pytest
from django.utils import timezone

from orchestrator.models import AdminState, Attempt, Job, JobState, StartPromise
from orchestrator.scheduler.forecast import planning
from tests.berth.shared.test_words import ends_of

MINUTE_S = 60


@pytest.fixture
def eight(make_device):
    return [make_device(index) for index in range(8)]


def test_a_job_that_fits_would_start_at_once_and_the_plan_says_where(client_of, ada, eight):
    answer = client_of(ada).send("POST", "/plan", {"gpus": 2})

    assert answer.status_code == 200
    found = answer.json()
    assert (found["starts_now"], found["reason"], found["ahead"]) == (True, "", 0)
    assert [(each["label"], each["rank"]) for each in found["devices"]] == [
        ("simulated GPU 0", 0),
        ("simulated GPU 1", 1),
    ]
    assert found["memory_claim"]["source"] == "whole device"
    assert found["training"] is None


def test_a_plan_says_how_long_earlier_runs_took_and_what_other_numbers_give(client_of, ada, eight, make_job):
    for _ in range(3):
        make_job(state=JobState.SUCCEEDED, seconds_run=600.0, spec={"gpus": 2})

    asked, *others = client_of(ada).send("POST", "/plan", {"gpus": 2}).json()["outcomes"]

    assert (asked["gpus"], asked["starts_now"], asked["is_soonest"]) == (2, True, False)
    assert asked["lasts"] == {
        "low_s": pytest.approx(570), "high_s": pytest.approx(630), "runs": 3, "like": "script and arguments",
    }  # fmt: skip
    assert asked["start_earliest"] < asked["end_earliest"] < asked["end_latest"]
    assert [(each["gpus"], each["lasts"], each["end_latest"]) for each in others] == [
        (1, None, None),
        (4, None, None),
        (8, None, None),
    ]


def test_a_plan_that_waits_is_never_done_before_it_starts(client_of, ada, bob, eight, make_job, make_attempt):
    make_attempt(state=JobState.RUNNING, devices=eight, owner=bob, gpus=8, time_limit_s=5 * 3600 + 20 * 60)
    for _ in range(6):
        make_job(state=JobState.SUCCEEDED, seconds_run=240.0, spec={"gpus": 2})

    found = client_of(ada).send("POST", "/plan", {"gpus": 2}).json()

    (asked,) = [each for each in found["outcomes"] if each["gpus"] == 2]
    start = found["sentence"].partition("Expected ")[2].rstrip(".")
    end = asked["sentence"].partition(", by ")[0].removeprefix("Done ")
    assert all(began <= done for began, done in zip(ends_of(start), ends_of(end), strict=True))
    assert found["start_earliest"] == asked["start_earliest"] <= asked["end_earliest"]
    assert found["start_latest"] == asked["start_latest"] <= asked["end_latest"]


def test_a_plan_changes_nothing(client_of, ada, eight):
    client_of(ada).send("POST", "/plan", {"gpus": 2})

    assert (Job.objects.count(), Attempt.objects.count(), StartPromise.objects.count()) == (0, 0, 0)


def test_a_job_that_would_wait_is_told_why_until_when_and_what_would_help(
    client_of, ada, bob, eight, make_attempt
):
    make_attempt(state=JobState.RUNNING, devices=eight[:6], owner=bob, gpus=6, time_limit_s=600)

    found = client_of(ada).send("POST", "/plan", {"gpus": 4}).json()

    assert not found["starts_now"]
    assert found["sentence"].startswith("Waits for 4 simulated GPUs; 2 are free.")
    assert found["start_latest"] is not None
    assert found["start_earliest"] <= found["start_latest"]
    assert {"change": "gpus", "value": 2, "stops": 0} in found["would_start_now_with"]


def test_another_pool_is_offered_where_it_is_free(
    client_of, ada, bob, eight, make_attempt, make_pool, make_device
):
    make_device(9, pool=make_pool("spare"))
    make_attempt(state=JobState.RUNNING, devices=eight, owner=bob, gpus=8)

    found = client_of(ada).send("POST", "/plan", {}).json()

    assert {"change": "pool", "value": "spare", "stops": 0} in found["would_start_now_with"]


def test_a_higher_priority_is_offered_only_as_far_as_one_may_go(
    client_of, ada, bob, root, eight, make_attempt
):
    make_attempt(
        state=JobState.RUNNING, devices=eight, owner=bob, gpus=8, priority=60, spec={"preemptible": True}
    )
    body = {"priority": 50, "time_limit_s": 3600}

    member = client_of(ada).send("POST", "/plan", body).json()["would_start_now_with"]
    admin = client_of(root).send("POST", "/plan", body).json()["would_start_now_with"]

    assert "priority" not in {each["change"] for each in member}
    assert {"change": "priority", "value": 61, "stops": 1} in admin


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"gpus": 9}, 422, "gpus"),
        ({"gpus": "two"}, 400, "gpus"),
        ({"pool": "none"}, 422, "pool"),
        ({"priority": 99}, 403, "priority"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_what_a_submit_would_refuse_a_plan_refuses_with_the_field(client_of, ada, eight, body, status, field):
    answer = client_of(ada).send("POST", "/plan", body)

    assert answer.status_code == status
    assert field in answer.json()["errors"]


def test_a_plan_sent_as_a_form_is_told_how_to_ask(client_of, ada, eight):
    answer = client_of(ada).post("/api/v1/plan", {"job": '{"gpus": 1}'})

    assert answer.status_code == 400
    assert answer.json()["detail"] == "Send the job as JSON; a script's text goes into source."


def test_a_drained_pool_says_so(client_of, ada, eight):
    type(eight[0]).objects.update(admin_state=AdminState.DRAINING)

    found = client_of(ada).send("POST", "/plan", {}).json()

    assert (found["starts_now"], found["reason"]) == (False, "unavailable")


def test_whoever_plans_trainings_is_asked(client_of, ada, eight, monkeypatch):
    monkeypatch.setattr(planning, "_training_planners", [])
    planning.register_training_planner(lambda user, spec, job: None)
    planning.register_training_planner(
        lambda user, spec, job: {"error": f"No way on {job.gpus} devices.", "devices": []}
    )

    found = client_of(ada).send("POST", "/plan", {"gpus": 2}).json()

    assert found["training"] == {"error": "No way on 2 devices.", "devices": []}


def test_a_plan_behind_a_hundred_waiting_jobs_says_how_many_are_ahead(
    client_of, ada, bob, eight, make_attempt, make_job
):
    for device in eight:
        make_attempt(state=JobState.RUNNING, devices=[device], owner=bob, time_limit_s=3600)
    for number in range(100):
        make_job(bob, gpus=(1, 1, 2, 4)[number % 4], time_limit_s=MINUTE_S * (1 + number))

    answer = client_of(ada).send("POST", "/plan", {"gpus": 4})

    assert answer.json()["ahead"] >= 50
    assert answer.json()["start_latest"] > timezone.now().isoformat()[:10]


def test_a_job_far_back_in_the_line_is_told_its_range_when_somebody_asks(
    client_of, ada, bob, eight, make_attempt, make_job
):
    make_attempt(state=JobState.RUNNING, devices=eight, owner=bob, gpus=8, time_limit_s=600)
    for _ in range(30):
        make_job(bob, gpus=8, time_limit_s=600)
    last = make_job(ada, gpus=8, time_limit_s=600)

    found = client_of(ada).send("GET", f"/jobs/{last.pk}/explain").json()

    assert found["start_earliest"] <= found["start_latest"]


def test_plan_of_work_without_a_gpu_says_zero_gpus(client_of, ada, make_device, make_pool):
    make_device(0)
    make_device(1, kind="cpu", pool=make_pool("cpu"))

    plan = client_of(ada).send("POST", "/plan", {"gpus": 0}).json()

    assert (plan["pool"], plan["gpus"], [each["gpus"] for each in plan["outcomes"]]) == ("cpu", 0, [0])
