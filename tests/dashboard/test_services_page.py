"""The page of services: what runs, what it answers, and buttons for its owner."""

import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from dashboard.parts import service_fields
from orchestrator.facts.events import ServiceFact
from orchestrator.facts.record import fact
from orchestrator.jobs import promotion
from orchestrator.models import JobState, Service, ServiceReplica
from orchestrator.services import keys
from tests.api.test_models import trained as trained
from tests.dashboard.markup import html_of


@pytest.fixture
def asked(make_service, make_attempt, make_job, ada) -> Service:
    """A service that answers requests with one replica, while a second one starts."""
    traffic = {"requests_per_s": 12.4, "p50_ms": 8.1, "p99_ms": 31.0, "errors": 1, "refused": 3, "late": 0}
    service: Service = make_service(asked_at=timezone.now(), traffic=traffic, revision=2)
    keys.issue(service, "web site")
    for number, ready in ((1, 1), (2, 0)):
        attempt = make_attempt(make_job(ada, name=f"digits {number}"), state=JobState.RUNNING)
        ServiceReplica.objects.create(service=service, job=attempt.job, revision=number, ready_attempt=ready)
    return service


def test_page_shows_replicas_traffic_and_the_names_of_keys(reader, ada, asked):
    page = html_of(reader(ada).get("/services"))

    for words in (
        "digits",
        "1 of 2 ready",
        "/serve/digits/",
        "python serve.py",
        "web site",
        "12.4",
        "8.1",
        "31",
    ):
        assert words in page
    assert "being replaced" in page
    assert "POST /api/v1/services/digits/stop" in page


def test_page_says_what_is_asleep_and_why_one_has_failed(reader, ada, make_service):
    make_service("asleep")
    why = fact(ServiceFact.DIES_AGAIN, times=3, error="out of memory").as_json()
    make_service("broken", state="failed", why=why)

    page = html_of(reader(ada).get("/services"))

    assert "asleep: the next request starts it" in page
    assert "3 replicas in a row have failed" in page
    assert "POST /api/v1/services/broken/start" in page


def test_removing_a_service_says_what_is_lost_before_the_button(reader, ada, make_service):
    make_service("digits")

    page = html_of(reader(ada).get("/services"))

    assert page.index("Remove…") < page.index("keys stop working for good") < page.index(">Remove<span")


def test_others_see_no_service_of_ada(reader, bob, asked):
    page = html_of(reader(bob).get("/services"))

    assert "digits" not in page
    assert "There are no services" in page


def test_the_page_of_a_service_says_how_it_answers_and_how_to_ask_it(reader, ada, asked):
    page = html_of(reader(ada).get("/services/digits"))

    for words in (
        "1 of 2 ready",
        "12.4",
        "8.1 ms",
        "31 ms",
        "being replaced",
        "web site",
        "curl -H",
        "python serve.py",
    ):
        assert words in page
    assert "/services/digits/change" in page


def test_a_new_key_is_shown_once_with_a_request_that_carries_it(reader, ada, asked):
    made = html_of(reader(ada).post("/services/digits/keys", {"name": "notebook"}))
    key = re.search(r"berthsvc_[\w-]+", made)
    # Where the browser stands now: the page refreshes itself there, and its buttons lead back there.
    again = html_of(reader(ada).get("/services/digits/keys", follow=True))
    refused = reader(ada).post("/services/digits/keys", {"name": "notebook"})

    assert key is not None
    assert f"Bearer {key[0]}" in made
    assert key[0] not in again
    assert "notebook" in again
    assert refused.status_code == 409
    assert "has a key notebook already" in html_of(refused)


def test_nobody_else_sees_changes_or_makes_keys_of_a_service(reader, bob, asked):
    for address in ("/services/digits", "/services/digits/change"):
        assert reader(bob).get(address).status_code == 404
    assert reader(bob).post("/services/digits/keys", {"name": "x"}).status_code == 404
    assert reader(bob).post("/services/digits/change", {"max_replicas": "9"}).status_code == 404


def program() -> SimpleUploadedFile:
    return SimpleUploadedFile("serve.py", b"print('it answers')\n")


def begin(client: Client, **fields: object) -> Any:
    form = {
        "name": "echo",
        "command": "python serve.py",
        "gpus": "1",
        "pool": "default",
        "file": program(),
        **fields,
    }
    return client.post("/new-service", form)


def test_a_service_begins_by_its_form_with_code_rules_and_a_share_of_a_device(reader, ada, make_device):
    make_device(0)

    answer = begin(
        reader(ada),
        gpu_memory_gib="4",
        with_packages="starlette\nuvicorn",
        env="MODE=fast",
        min_replicas="1",
        max_replicas="3",
        idle_s="10m",
        deadline_s="2",
        health_path="/ready",
    )

    assert answer.headers["Location"] == "/services/echo"
    made = Service.objects.get(name="echo")
    assert (made.min_replicas, made.max_replicas, made.idle_s, made.deadline_s) == (1, 3, 600, 2)
    assert made.health_path == "/ready"
    assert made.job_fields["command"] == ["python", "serve.py"]
    assert made.job_fields["gpu_memory_gib"] == 4
    assert made.job_fields["with_packages"] == ["starlette", "uvicorn"]
    assert made.job_fields["env"] == {"MODE": "fast"}


def test_a_form_that_is_refused_keeps_what_was_typed_and_the_upload(reader, ada, make_device):
    make_device(0)
    client = reader(ada)

    refused = begin(client, name="No Name", min_replicas="5", deadline_s="soon", cpus="two")
    page = html_of(refused)
    signed = re.search(r'name="bundle" value="([^"]+)"', page)
    assert signed is not None
    form = {"name": "echo", "command": "python serve.py", "gpus": "1", "pool": "default"}
    made = client.post("/new-service", {**form, "bundle": signed[1], "bundle_name": "serve.py"})

    assert refused.status_code == 400
    assert "No service was begun." in page
    assert 'value="No Name"' in page
    assert "is not a time such as 90 or 10m" in page
    assert "is not a whole number" in page
    assert made.status_code == 302
    assert Service.objects.filter(name="echo").exists()


def test_what_rest_refuses_stands_at_its_field(reader, ada, make_device):
    make_device(0)
    client = reader(ada)

    named = html_of(begin(client, name="No Name"))
    replicas = html_of(begin(client, min_replicas="5"))
    begin(client)
    taken = begin(client)

    assert 'id="name-error"' in named
    assert "5 is more than max_replicas" in replicas
    assert 'id="min_replicas-error"' in replicas
    assert taken.status_code == 409
    assert "There is a service echo already" in html_of(taken)


def test_changing_a_rule_keeps_the_replicas_and_changing_the_command_replaces_them(reader, ada, make_device):
    make_device(0)
    client = reader(ada)
    begin(client, gpu_memory_gib="4", env="MODE=fast")
    before = Service.objects.get(name="echo")
    form = {
        "command": "python serve.py",
        "gpus": "1",
        "pool": "default",
        "gpu_memory_gib": "4",
        "env": "MODE=fast",
    }
    form |= service_fields.texts_of(before)

    page = html_of(client.get("/services/echo/change"))
    rule = client.post("/services/echo/change", form | {"max_replicas": "4"})
    changed = Service.objects.get(name="echo")
    job = client.post("/services/echo/change", form | {"command": "python serve.py --fast"})
    replaced = Service.objects.get(name="echo")

    assert 'value="python serve.py"' in page
    assert (rule.status_code, changed.max_replicas, changed.revision) == (302, 4, 1)
    assert (job.status_code, replaced.revision) == (302, 2)
    assert replaced.job_fields["command"] == ["python", "serve.py", "--fast"]
    assert replaced.job_fields["gpu_memory_gib"] == 4
    assert replaced.bundle == before.bundle


def test_an_emptied_rule_gets_the_default_that_its_field_promises(reader, ada, make_device):
    make_device(0)
    client = reader(ada)
    rules = {"min_replicas": "1", "max_replicas": "3", "idle_s": "90", "deadline_s": "2", "parallel": "8"}
    begin(client, **rules, health_path="/ready")
    form = service_fields.texts_of(Service.objects.get(name="echo"))

    emptied = form | {field.name: "" for field in service_fields.RULES}
    answer = client.post("/services/echo/change", emptied)
    begin(client, name="fresh")

    assert answer.status_code == 302
    changed, fresh = Service.objects.get(name="echo"), Service.objects.get(name="fresh")
    for field in service_fields.RULES:
        assert getattr(changed, field.name) == getattr(fresh, field.name), field.name


def test_new_code_on_the_form_replaces_the_code_alone(reader, ada, make_device):
    make_device(0)
    client = reader(ada)
    begin(client)
    before = Service.objects.get(name="echo")
    code = SimpleUploadedFile("serve.py", b"print('it answers otherwise')\n")

    client.post("/services/echo/change", {**service_fields.texts_of(before), "file": code})

    after = Service.objects.get(name="echo")
    assert after.bundle != before.bundle
    assert after.job_fields == before.job_fields


def test_an_operator_changes_the_rules_of_anothers_service_but_not_what_it_runs(reader, asked, root):
    page = html_of(reader(root).get("/services/digits/change"))
    answer = reader(root).post("/services/digits/change", {"max_replicas": "7", "command": "python other.py"})

    assert "can be changed by <bdi>ada</bdi> alone" in page
    assert 'name="command"' not in page
    assert answer.status_code == 302
    after = Service.objects.get(name="digits")
    assert (after.max_replicas, after.job_fields["command"]) == (7, ["python", "serve.py"])


BROKEN: list[object] = [
    {"kind": "service", "command": ["python", "x.py"], "field_of_an_old_version": 3},
    {"kind": "service", "command": "python", "gpus": "many"},
    ["not", "an", "object"],
]


@pytest.mark.parametrize("stored", BROKEN, ids=["unknown field", "wrong types", "no object"])
def test_a_service_whose_stored_job_is_broken_leaves_the_pages_of_all_others(
    reader, ada, make_service, stored
):
    make_service("well")
    make_service("broken", job_fields=stored)

    listed = reader(ada).get("/services")
    own = reader(ada).get("/services/broken")
    change = reader(ada).get("/services/broken/change")

    assert listed.status_code == own.status_code == change.status_code == 200
    assert "/services/well" in html_of(listed)
    assert "No replica can be submitted" in html_of(listed)
    assert "No replica can be submitted" in html_of(own)


@pytest.mark.parametrize("stored", BROKEN, ids=["unknown field", "wrong types", "no object"])
def test_a_service_whose_stored_job_is_broken_is_mended_by_its_form(
    reader, ada, make_service, make_device, store_script, stored
):
    make_device(0)
    service = make_service("broken", job_fields=stored, bundle=store_script(b"print(1)\n"))
    form = service_fields.texts_of(service) | {"command": "python serve.py", "gpus": "1"}

    answer = reader(ada).post("/services/broken/change", form)

    service.refresh_from_db()
    assert answer.status_code == 302, html_of(answer)
    assert service.job_fields["command"] == ["python", "serve.py"]
    assert service.revision == 2
    assert "No replica can be submitted" not in html_of(reader(ada).get("/services/broken"))


@pytest.mark.parametrize(
    "stored", [["a", "list"], {"datasets": [["digits@1"], {}, 3]}, {"datasets": 5}], ids=str
)
def test_a_broken_service_leaves_the_pages_of_models(reader, ada, make_service, trained, stored):
    made = promotion.promote(ada, trained, name="digits")
    make_service("broken", job_fields=stored)
    make_service("well", job_fields={"command": ["x"], "datasets": ["ada/digits@1"]})

    page = reader(ada).get(f"/models/{made.dataset.reference}")

    assert page.status_code == 200
    assert "/services/well" in html_of(page)
    assert reader(ada).get("/services/broken").status_code == 200


def test_a_broken_reason_of_one_service_leaves_the_list(reader, ada, make_service):
    make_service("well")
    make_service("broken", why={"kind": "of_a_later_version", "facts": {"x": 1}})

    listed = html_of(reader(ada).get("/services"))

    assert "/services/well" in listed
    assert "/services/broken" in listed
