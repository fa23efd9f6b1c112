"""Limits: what is refused at once, what waits, and what makes no sense."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.models import AuditEntry, Job, JobState, Lease, Quota
from orchestrator.people.quotas import week_gpu_s
from orchestrator.scheduler import passes
from tests.read_sentences import wait_sentence


@pytest.fixture
def limit(client_of, root):
    """Make a quota over REST; returns the answer."""
    client = client_of(root)
    return lambda **fields: client.send("POST", "/quotas", fields)


def test_who_is_at_the_limit_waits_and_is_told(limit, submit, client_of, ada, bob):
    first = submit(client_of(ada)).json()
    limit(user="ada", max_devices=1)
    body = {"source": {"text": "print(1)\n"}}
    second = client_of(ada).send("POST", "/jobs", body).json()
    third = client_of(bob).send("POST", "/jobs", body).json()

    passes.run_pass()

    states = dict(Job.objects.values_list("pk", "state"))
    assert [states[Job.objects.get(pk=each["id"]).pk] for each in (first, second, third)] == [
        JobState.STARTING,
        JobState.QUEUED,
        JobState.STARTING,
    ]
    waiting = client_of(ada).send("GET", f"/jobs/{second['id']}").json()["explanation"]
    assert waiting["reason"] == "quota"
    assert waiting["sentence"] == "Limit of ada: 1 of 1 simulated GPUs in use; this job needs 1."


def test_a_limit_in_one_pool_leaves_the_others(limit, make_pool, make_device, client_of, ada):
    for index, name in enumerate(("a", "a", "b")):
        make_device(index, pool=make_pool(name))
    limit(pool="a", max_devices=1)
    body = {"source": {"text": "print(1)\n"}}
    for pool in ("a", "a", "b"):
        assert client_of(ada).send("POST", "/jobs", {**body, "pool": pool}).status_code == 201

    passes.run_pass()

    assert sorted(Job.objects.filter(state="starting").values_list("pool_id", flat=True)) == ["a", "b"]
    assert wait_sentence(Job.objects.get(state="queued")).startswith("Limit of ada in pool a: 1 of 1")


def test_hours_of_the_last_week_are_counted_and_hold_back(
    limit, make_attempt, make_device, make_job, ada, home
):
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(0)])
    now = timezone.now()
    Lease.objects.filter(attempt=attempt).update(
        started_at=now - timedelta(days=9), ended_at=now - timedelta(days=6), memory_bytes=40 * 2**30
    )
    used = week_gpu_s([ada.pk], now)
    assert used[ada.pk, "default"] == pytest.approx(
        86_400 * 0.5
    )  # one day of three is in the week, half a GPU
    limit(user="ada", gpu_hours_a_week=12)
    make_device(1)
    waiting = make_job()

    passes.run_pass(now)

    waiting.refresh_from_db()
    assert wait_sentence(waiting) == "Limit of ada: 12.0 of 12 GPU-hours used in the last 7 days."


def test_t23_who_has_enough_waiting_is_told_to_come_back(limit, submit, client_of, ada):
    client = client_of(ada)
    assert submit(client).status_code == 201
    limit(max_queued=2)
    body = {"source": {"text": "print(1)\n"}}
    assert client.send("POST", "/jobs", body).status_code == 201

    refused = client.send("POST", "/jobs", body)

    assert (refused.status_code, refused["Retry-After"]) == (429, "60")
    assert refused.json()["detail"].startswith("Your limit is 2 waiting jobs, and 2 wait.")
    assert Job.objects.count() == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": 2}, "Your limit is 1 device; the job asks for 2."),
        ({"array": 5}, "Your limit is 3 waiting jobs; this submit has 5."),
    ],
)
def test_what_the_limits_can_never_let_run_is_refused(limit, submit, client_of, ada, fields, words):
    limit(user="ada", max_devices=1, max_queued=3)

    answer = submit(client_of(ada), **fields)

    assert (answer.status_code, answer.json()["detail"]) == (422, words)


def test_a_persons_own_limit_goes_before_everybodys(limit, submit, client_of, ada, bob):
    limit(max_devices=1)
    limit(user="ada", max_devices=2)

    assert submit(client_of(ada), gpus=2).status_code == 201
    assert client_of(bob).send("POST", "/jobs", {"gpus": 2, "source": {"text": "1\n"}}).status_code == 422


@pytest.mark.parametrize(
    ("quota", "field", "words"),
    [
        ({}, "max_devices", "limits nothing"),
        ({"max_devices": 0}, "max_devices", "could never start"),
        ({"weight": 0}, "weight", "more than 0"),
        ({"pool": "default", "weight": 2}, "weight", "applies to all pools"),
        ({"max_devices": 2, "gpu_hours_a_week": 337}, "gpu_hours_a_week", "for a whole week make 336"),
        ({"user": "ada", "pool": "default", "max_devices": 5}, "max_devices", "but 4 over all pools"),
        ({"user": "nobody", "max_devices": 1}, "user", "no user 'nobody'"),
        ({"pool": "nowhere", "max_devices": 1}, "pool", "no pool 'nowhere'"),
    ],
)
def test_a_quota_that_contradicts_itself_is_refused_with_the_reason(
    limit, make_pool, ada, quota, field, words
):
    make_pool()
    limit(user="ada", max_devices=4)

    answer = limit(**quota)

    assert answer.status_code == 422
    assert words in answer.json()["errors"][field][0]
    assert Quota.objects.count() == 1


@pytest.mark.parametrize("value", [-1, 1.5, "2", True, 10**9, [], {}])
def test_b28_limits_that_are_no_counts_are_400(limit, value):
    assert limit(max_devices=value).status_code == 400


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"1e400", b"-1", b'"x"'])
def test_b30_limits_that_are_no_finite_numbers_are_400(client_of, root, value):
    answer = client_of(root).send("POST", "/quotas", b'{"gpu_hours_a_week": ' + value + b"}")

    assert answer.status_code == 400


def test_quotas_are_changed_listed_and_taken_away_and_all_of_it_is_written_down(limit, client_of, root, ada):
    client = client_of(root)
    quota = limit(user="ada", max_devices=2).json()
    path = f"/quotas/{quota['id']}"

    assert limit(user="ada", max_queued=2).status_code == 409
    changed = client.send("PATCH", path, {"max_devices": None, "weight": 2}).json()
    assert (changed["max_devices"], changed["weight"]) == (None, 2)
    assert client.send("PATCH", path, {"weight": None}).status_code == 422
    assert client.send("PATCH", path, {}).status_code == 400
    assert client.send("GET", "/quotas").json()["results"] == [changed]
    assert client.send("DELETE", path).status_code == 204
    written = AuditEntry.objects.filter(action__startswith="quota").order_by("pk")
    assert list(written.values_list("action", "subject", "text")) == [
        ("quota.made", "quota of ada", "max_devices 2."),
        ("quota.changed", "quota of ada", "weight 2."),
        ("quota.deleted", "quota of ada", "weight 2."),
    ]


def test_everybody_sees_what_they_use_of_their_limits(limit, make_attempt, make_job, client_of, ada):
    make_attempt(state=JobState.RUNNING)
    make_job()
    limit(user="ada", max_devices=4, weight=2)
    limit(pool="default", max_queued=7)

    overall, inside = client_of(ada).send("GET", "/me").json()["limits"]

    assert (overall["pool"], overall["devices"], overall["max_devices"], overall["weight"]) == (None, 1, 4, 2)
    assert (inside["pool"], inside["queued"], inside["max_queued"]) == ("default", 1, 7)
    assert 0 <= inside["gpu_hours"] < 0.1
