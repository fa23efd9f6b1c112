"""Jobs: list, look, change, act."""

import math
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from orchestrator.models import AuditEntry, Job, JobState, Person, Role
from orchestrator.store.checkpoints.generations import GenerationStore


def ids(answer) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [job["id"] for job in answer.json()["results"]]


# --- one job --------------------------------------------------------------------------------------------


def test_a_job_is_found_by_any_unambiguous_part_of_its_id(client_of, ada, make_job):
    job = make_job()
    client = client_of(ada)

    for part in (str(job.pk), job.short_id, str(job.pk)[5:20], str(job.pk).upper(), job.pk.hex):
        assert client.send("GET", f"/jobs/{part}").json()["id"] == str(job.pk), part


def test_a_part_that_two_jobs_share_is_400_and_nonsense_404(client_of, ada, make_job):
    first = make_job()
    make_job()
    client = client_of(ada)

    assert client.send("GET", f"/jobs/{str(first.pk)[:6]}").status_code == 400
    for part in ("zzzz", "%25%25%25%25", "____", "abc", "-", "' OR 1=1 --", "..", "None"):
        assert client.send("GET", f"/jobs/{part}").status_code == 404, part


def test_anothers_job_does_not_make_a_part_ambiguous(client_of, ada, bob, make_job):
    job = make_job()
    make_job(bob)

    assert client_of(ada).send("GET", f"/jobs/{str(job.pk)[:6]}").json()["id"] == str(job.pk)


def test_a_running_job_shows_its_attempt_and_progress(client_of, ada, make_attempt, make_device):
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(3), make_device(5)], gpus=2)
    type(attempt.job).objects.update(step=50, total_steps=200, steps_per_s=2.5)

    job = client_of(ada).send("GET", f"/jobs/{attempt.job_id}").json()

    assert [(lease["index"], lease["rank"]) for lease in job["attempt"]["devices"]] == [(3, 0), (5, 1)]
    assert job["attempt"]["number"] == 1
    assert job["progress"] == {
        "step": 50,
        "total_steps": 200,
        "unit": "step",
        "fraction": 0.25,
        "steps_per_s": 2.5,
        "eta_s": 60.0,
    }
    assert job["explanation"] is None
    assert job["run_s"] >= 0


def test_b47_what_json_cannot_say_is_null_with_a_note(client_of, ada, make_job):
    job = make_job(last_values={"loss": "nan", "up": "inf", "down": "-inf", "lr": 3e-4, "step": 7})

    answer = client_of(ada).send("GET", f"/jobs/{job.pk}")

    assert b"NaN" not in answer.content
    assert answer.json()["last_values"] == {"loss": None, "up": None, "down": None, "lr": 3e-4, "step": 7}
    assert answer.json()["nonfinite"] == {"loss": "nan", "up": "inf", "down": "-inf"}


def test_only_the_owner_sees_values_of_the_environment(client_of, ada, root, make_job):
    job = make_job(spec={"env": {"KEY": "value"}})

    assert client_of(ada).send("GET", f"/jobs/{job.pk}").json()["env"] == {"KEY": "value"}
    assert client_of(root).send("GET", f"/jobs/{job.pk}").json()["env"] == {"KEY": None}


def test_only_the_owner_sees_the_queries_of_addresses_which_may_be_passwords(client_of, ada, root, make_job):
    signed = "https://store.example/a.csv?X-Signature=secret"
    fields = {
        "args": [f"--from={signed}#part", "--what?", "a=b?c"],
        "resume_args": [signed],
        "datasets": [f"a={signed}"],
    }
    job = make_job(spec=fields)

    of_ada, of_root = (client_of(user).send("GET", f"/jobs/{job.pk}").json() for user in (ada, root))

    assert {name: of_ada[name] for name in fields} == fields
    assert {name: of_root[name] for name in fields} == {
        "args": ["--from=https://store.example/a.csv?…#part", "--what?", "a=b?c"],
        "resume_args": ["https://store.example/a.csv?…"],
        "datasets": ["a=https://store.example/a.csv"],
    }


def test_head_answers_like_get(client_of, ada, make_job):
    assert client_of(ada).send("HEAD", f"/jobs/{make_job().pk}").status_code == 200


# --- lists ----------------------------------------------------------------------------------------------


def test_pages_follow_each_other_and_lead_back(client_of, ada, make_job):
    jobs = [str(make_job().pk) for _ in range(7)][::-1]
    client = client_of(ada)

    first = client.send("GET", "/jobs?limit=3")
    assert (ids(first), first.json()["previous"]) == (jobs[:3], None)
    second = client.get(first.json()["next"])
    assert ids(second) == jobs[3:6]
    last = client.get(second.json()["next"])
    assert (ids(last), last.json()["next"]) == (jobs[6:], None)
    back = client.get(client.get(last.json()["previous"]).json()["previous"])
    assert (ids(back), back.json()["previous"]) == (jobs[:3], None)


def test_a_page_stays_in_place_while_jobs_come_in(client_of, ada, make_job):
    jobs = [str(make_job().pk) for _ in range(4)][::-1]
    client = client_of(ada)
    first = client.send("GET", "/jobs?limit=2").json()
    make_job()

    assert ids(client.get(first["next"])) == jobs[2:]


@pytest.mark.parametrize("ordering", ["priority", "-priority", "name", "-name", "submitted_at", "queued_at"])
def test_every_ordering_gives_each_job_once(ordering, client_of, ada, make_job):
    jobs = {str(make_job(priority=n % 3, name=f"job {n % 2}").pk) for n in range(8)}
    client = client_of(ada)
    seen: list[str] = []
    address = f"/api/v1/jobs?limit=3&ordering={ordering}"
    while address:
        answer = client.get(address)
        seen += ids(answer)
        address = answer.json()["next"]

    assert (len(seen), set(seen)) == (8, jobs)


def test_filters_narrow_the_list(client_of, root, ada, bob, make_job, make_pool):
    wanted = make_job(name="tiny-gpt", tags=["paper-x", "a"], state=JobState.HELD, pool=make_pool("fast"))
    make_job(bob, name="other", tags=["paper"])
    client = client_of(root)

    for query in (
        "state=held",
        "state=held,running",
        "owner=ada",
        "tag=paper-x",
        "q=TINY",
        f"q={wanted.short_id}",
        "pool=fast",
    ):
        assert ids(client.send("GET", f"/jobs?{query}")) == [str(wanted.pk)], query


@pytest.mark.parametrize("tag", ["paper", "%", "_", '"', '","', "x' OR 1=1 --", "PAPER-X"])
def test_b42_b44_a_tag_is_compared_as_a_whole_and_as_text(tag, client_of, ada, make_job):
    make_job(tags=["paper-x"])

    assert ids(client_of(ada).send("GET", f"/jobs?tag={tag}")) == []


@pytest.mark.parametrize(
    "query",
    [
        "page=-1",
        "limit=0",
        "limit=-1",
        "limit=501",
        "limit=1000000000",
        "limit=x",
        "ordering=password",
        "ordering=owner__password",
        "ordering=--priority",
        "ordering=",
        "owner__password__startswith=pbkdf2",
        "state=dreaming",
        "cursor=x",
        "cursor=WzEsMiwzXQ",
        "cursor=W2ZhbHNlLG51bGwsIngiXQ",
        "cursor=W2ZhbHNlLFtdLCJ4Il0",
    ],
)
def test_b43_parameters_that_are_not_offered_are_400(query, client_of, ada, make_job):
    make_job()

    assert client_of(ada).send("GET", f"/jobs?{query}").status_code == 400


def test_a_cursor_of_another_ordering_is_400_and_not_a_crash(client_of, ada, make_job):
    for n in range(3):
        make_job(name=f"job {n}")
    client = client_of(ada)
    cursor = (
        client.send("GET", "/jobs?limit=1&ordering=name").json()["next"].split("cursor=")[1].split("&")[0]
    )

    assert client.send("GET", f"/jobs?ordering=queued_at&cursor={cursor}").status_code == 400


@pytest.mark.parametrize("value", ["' OR 1=1 --", "%", "_", "\\", "a%27b", "x'; DROP TABLE job; --"])
def test_b44_quotes_and_wildcards_are_text(value, client_of, ada, make_job):
    make_job()
    client = client_of(ada)

    for name in ("q", "owner", "pool"):
        answer = client.send("GET", f"/jobs?{name}={value}")
        assert (answer.status_code, answer.json()["results"]) == (200, []), name


@pytest.mark.parametrize("path", ["/jobs?q=a%00b", "/jobs/a%00bcd", "/datasets/a%00b", "/jobs?%00=1"])
def test_a_nul_in_an_address_is_400(path, client_of, ada):
    assert client_of(ada).send("GET", path).status_code == 400


def test_a_longer_list_costs_no_more_queries(client_of, ada, make_attempt, make_job):
    client = client_of(ada)
    client.send("GET", "/jobs")  # notes the token's use

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            client.send("GET", "/jobs?limit=500")
        return len(captured)

    make_attempt(state=JobState.RUNNING)
    few = queries()
    for _ in range(10):
        make_attempt(state=JobState.RUNNING)
        make_job()

    assert queries() == few <= 8


# --- changes and actions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    ["state", "owner", "id", "attempt_count", "number", "pool", "gpus", "bundle", "env", "parent", "x"],
)
def test_b45_protected_fields_are_400_and_stay(field, client_of, ada, make_job):
    job = make_job()
    before = client_of(ada).send("GET", f"/jobs/{job.pk}").json()

    answer = client_of(ada).send("PATCH", f"/jobs/{job.pk}", {field: "x", "name": "new"})

    assert answer.status_code == 400
    assert "name" in answer.json()["detail"]
    assert client_of(ada).send("GET", f"/jobs/{job.pk}").json() == before


def test_name_tags_priority_and_limit_can_be_changed(client_of, ada, make_job):
    changes = {"name": "new", "tags": ["a"], "priority": 10, "time_limit_s": 60.0}

    job = client_of(ada).send("PATCH", f"/jobs/{make_job().pk}", changes).json()

    assert {name: job[name] for name in changes} == changes


@pytest.mark.parametrize(
    "body", [{}, {"priority": "high"}, {"priority": 101}, {"name": ""}, {"tags": "a"}, b"[]"]
)
def test_changes_that_are_none_are_400(body, client_of, ada, make_job):
    assert client_of(ada).send("PATCH", f"/jobs/{make_job().pk}", body).status_code == 400


def test_a_priority_above_ones_role_is_403(client_of, ada, make_job):
    assert client_of(ada).send("PATCH", f"/jobs/{make_job().pk}", {"priority": 100}).status_code == 403


def test_hold_release_and_cancel_are_idempotent(client_of, ada, make_job):
    job = make_job()
    client = client_of(ada)

    for action, state in [("hold", "held"), ("release", "queued"), ("cancel", "cancelled")]:
        for _ in range(2):
            answer = client.send("POST", f"/jobs/{job.pk}/{action}")
            assert (answer.status_code, answer.json()["state"]) == (200, state)


@pytest.mark.parametrize("action", ["hold", "release", "preempt", "checkpoint", "profile"])
def test_what_is_not_legal_in_a_state_is_409_with_a_reason(action, client_of, ada, make_job):
    job = make_job(state=JobState.SUCCEEDED)

    answer = client_of(ada).send("POST", f"/jobs/{job.pk}/{action}")

    assert answer.status_code == 409
    assert "succeeded" in answer.json()["detail"]


def test_cancelling_a_running_job_is_a_wish(client_of, ada, make_attempt):
    job = make_attempt(state=JobState.RUNNING).job

    answer = client_of(ada).send("POST", f"/jobs/{job.pk}/cancel")

    assert (answer.json()["state"], answer.json()["stop_reason"]) == ("stopping", "cancel")


def test_a_checkpoint_is_ordered_from_the_supervisor(client_of, ada, make_attempt, home):
    attempt = make_attempt(state=JobState.RUNNING)
    folder = home.job(attempt.job_id).attempt(1)
    folder.root.mkdir(parents=True)

    assert client_of(ada).send("POST", f"/jobs/{attempt.job_id}/checkpoint").status_code == 200
    assert len(list(folder.orders.iterdir())) == 1


def test_a_retry_is_a_new_job_with_the_same_code(client_of, ada, submit, home):
    client = client_of(ada)
    parent = submit(client, env={"SEED": "1"}).json()
    assert client.send("POST", f"/jobs/{parent['id']}/retry", {"resume": True}).status_code == 409
    path = home.job(parent["id"]).checkpoints / "last.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    GenerationStore(home.job(parent["id"])).capture([path], 1, 5, lambda: True, settle_s=0)

    answer = client.send("POST", f"/jobs/{parent['id']}/retry", {"resume": True, "gpus": 2})

    assert answer.status_code == 201
    job = answer.json()
    assert (job["parent"], job["resume_job"]) == (parent["id"], parent["id"])
    assert (job["gpus"], job["bundle"], job["env"]) == (2, parent["bundle"], {"SEED": "1"})
    assert client.send("POST", f"/jobs/{parent['id']}/retry").json()["resume_job"] is None


@pytest.mark.parametrize(
    "body", [{"resume": "yes"}, {"source": {"text": "x"}}, {"gpus": -1}, {"owner": "bob"}, b"[]"]
)
def test_a_retry_with_what_cannot_be_is_400(body, client_of, ada, submit):
    client = client_of(ada)
    parent = submit(client).json()

    assert client.send("POST", f"/jobs/{parent['id']}/retry", body).status_code == 400


@pytest.fixture
def operator(bob) -> User:
    Person.objects.update_or_create(user=bob, defaults={"role": Role.OPERATOR})
    operator: User = bob
    return operator


@pytest.fixture
def kept_private(client_of, ada, submit) -> dict[str, Any]:
    """A job of ada's whose environment holds what only she may read."""
    job: dict[str, Any] = submit(client_of(ada), env={"API_KEY": "ada's own"}).json()
    assert job["env"] == {"API_KEY": "ada's own"}
    return job


def test_an_operators_retry_runs_the_job_for_its_owner_and_shows_no_value(
    kept_private, client_of, ada, operator
):
    answer = client_of(operator).send("POST", f"/jobs/{kept_private['id']}/retry", {"priority": 70})

    assert answer.status_code == 201, answer.content
    made = Job.objects.get(pk=answer.json()["id"])
    assert (made.owner, made.priority) == (ada, 70)
    assert made.spec_fields["env"] == {"API_KEY": "ada's own"}
    assert answer.json()["env"] == {"API_KEY": None}
    assert made.events.get().actor == operator.username
    assert AuditEntry.objects.filter(action="job.retry", actor=operator.username).exists()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {"tags": ["seen"]}),
        ("POST", "/hold", {}),
        ("POST", "/cancel", {}),
        ("POST", "/retry", {}),
        ("POST", "/move", {"behind": "second"}),
    ],
)
def test_no_answer_shows_an_operator_the_values_of_anothers_environment(
    method, path, body, kept_private, client_of, ada, operator, submit
):
    second = submit(client_of(ada)).json()["id"]
    body = {name: second if value == "second" else value for name, value in body.items()} if body else body

    answer = client_of(operator).send(method, f"/jobs/{kept_private['id']}{path}", body)

    assert answer.status_code < 300, answer.content
    assert answer.json()["env"] == {"API_KEY": None}
    assert b"ada's own" not in answer.content


@pytest.mark.parametrize(
    "change", [{"args": ["--print-env"]}, {"env": {}}, {"secrets": []}, {"entrypoint": "x.py"}]
)
def test_an_operator_may_not_change_what_anothers_job_runs(change, kept_private, client_of, operator):
    answer = client_of(operator).send("POST", f"/jobs/{kept_private['id']}/retry", change)

    assert answer.status_code == 403
    assert list(answer.json()["errors"]) == list(change)
    assert Job.objects.count() == 1


def test_nobody_runs_jobs_for_somebody_whose_account_is_off(kept_private, client_of, ada, operator):
    ada.is_active = False
    ada.save()

    assert client_of(operator).send("POST", f"/jobs/{kept_private['id']}/retry").status_code == 403


# --- why, and what happened -----------------------------------------------------------------------------


def test_a_waiting_job_says_why_and_what_would_start_it_now(
    client_of, ada, make_job, make_attempt, make_device
):
    devices = [make_device(index) for index in range(4)]
    make_attempt(state=JobState.RUNNING, devices=devices[:3], gpus=3)
    job = make_job(
        gpus=4,
        spec={"gpus": 4},
        wait_code="devices",
        wait_facts={"gpus": 4, "free": 1, "device_kinds": ["cpu"]},
        wait_ahead=0,
        start_earliest=timezone.now() + timedelta(minutes=5),
    )

    answer = client_of(ada).send("GET", f"/jobs/{job.pk}/explain").json()

    assert re.fullmatch(r"Waits for 4 [\w ]+; 1 is free\. Expected in \d to \d min\.", answer["sentence"])
    assert answer["reason"] == "devices"
    assert answer["start_earliest"].endswith("Z")
    assert answer["would_start_now_with"] == [{"change": "gpus", "value": 1, "stops": 0}]


def test_an_expected_start_that_is_over_is_shown_as_now(client_of, ada, make_job):
    before = timezone.now()
    job = make_job(start_earliest=before - timedelta(minutes=9), start_latest=before + timedelta(minutes=1))
    client = client_of(ada)

    for shown in (
        client.send("GET", f"/jobs/{job.pk}/explain").json(),
        client.send("GET", f"/jobs/{job.pk}").json()["explanation"],
    ):
        assert before <= datetime.fromisoformat(shown["start_earliest"]) <= timezone.now()
        assert datetime.fromisoformat(shown["start_latest"]) == before + timedelta(minutes=1)


def test_a_job_that_does_not_wait_says_so(client_of, ada, make_job):
    job = make_job(state=JobState.SUCCEEDED)

    answer = client_of(ada).send("GET", f"/jobs/{job.pk}/explain").json()

    assert answer["reason"] == ""
    assert "succeeded" in answer["sentence"]


def test_events_are_read_on_from_a_number(client_of, ada, make_job):
    job = make_job()
    client = client_of(ada)
    client.send("POST", f"/jobs/{job.pk}/hold")
    client.send("POST", f"/jobs/{job.pk}/cancel")

    first = client.send("GET", f"/jobs/{job.pk}/events?limit=2").json()
    rest = client.send("GET", f"/jobs/{job.pk}/events?after={first['next_after']}").json()

    assert [event["to"] for event in first["results"] + rest["results"]] == ["queued", "held", "cancelled"]
    assert first["results"][0]["from"] is None
    assert rest["results"][0]["actor"] == "ada"


def test_attempts_are_listed_with_their_devices(client_of, ada, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)

    [shown] = client_of(ada).send("GET", f"/jobs/{attempt.job_id}/attempts").json()["results"]

    assert (shown["number"], shown["state"], shown["exit_kind"]) == (1, "running", None)
    assert shown["devices"][0]["label"] == "simulated GPU 0"
    assert math.isclose(shown["run_s"], 0)
