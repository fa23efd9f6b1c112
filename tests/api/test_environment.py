"""The packages of jobs, through REST and on the job's page."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs.environments import preparing
from orchestrator.models import Environment, EnvironmentState, Job

SCRIPT = '# /// script\n# dependencies = ["tinylib"]\n# ///\nimport tinylib\n'


@pytest.fixture
def submit(client_of, ada, make_device):
    """Submit ada's script; returns the answer."""
    make_device()
    client = client_of(ada)

    def send(text: str = SCRIPT, **fields: Any) -> Any:
        return client.send("POST", "/jobs", {"source": {"text": text}, **fields})

    return send


def ready(row: Environment) -> Environment:
    row.state, row.lock, row.key = EnvironmentState.READY, "tinylib==1.0\n", "0" * 40
    row.packages = [{"name": "tinylib", "version": "1.0"}]
    row.started_at = row.ended_at = timezone.now()
    row.save()
    return row


def test_header_of_a_submitted_script_asks_for_an_environment(submit):
    answer = submit()

    assert answer.status_code == 201, answer.content
    assert answer.json()["environment"] == "train.py"
    row = Environment.objects.get()
    assert (row.state, row.origin, row.request["lines"]) == ("waiting", "train.py", ["tinylib"])
    assert Job.objects.get().environment == row


def test_packages_of_a_job_are_told_with_their_versions(submit, client_of, ada):
    job = submit().json()
    ready(Environment.objects.get())

    answer = client_of(ada).send("GET", job["links"]["environment"].removeprefix("/api/v1")).json()

    assert answer["packages"] == [{"name": "tinylib", "version": "1.0"}]
    assert (answer["state"], answer["origin"], answer["lock"]) == ("ready", "train.py", "tinylib==1.0\n")


def test_job_without_packages_of_its_own_has_no_environment(submit, client_of, ada):
    job = submit("print(1)\n").json()

    answer = client_of(ada).send("GET", f"/jobs/{job['id']}/environment")

    assert (job["environment"], Environment.objects.count(), answer.status_code) == (None, 0, 404)


def test_packages_of_others_are_not_told(submit, client_of, bob):
    job = submit().json()

    assert client_of(bob).send("GET", f"/jobs/{job['id']}/environment").status_code == 404


def test_clone_runs_with_the_same_lock(submit, client_of, ada):
    first = submit().json()
    row = ready(Environment.objects.get())

    clone = client_of(ada).send("POST", f"/jobs/{first['id']}/retry", {}).json()
    other = client_of(ada).send("POST", f"/jobs/{first['id']}/retry", {"with_packages": ["einops"]}).json()

    assert Job.objects.get(pk=clone["id"]).environment == row
    changed = Job.objects.get(pk=other["id"]).environment
    assert changed is not None
    assert changed.request["lines"] == ["tinylib", "einops"]


def test_clone_of_a_job_whose_packages_failed_tries_them_again(submit, client_of, ada):
    first = submit().json()
    why = fact(Ended.ENVIRONMENT_FAILED, cause="conflict", origin="train.py", message="a and b")
    Environment.objects.update(state=EnvironmentState.FAILED, why=why.as_json())
    preparing.fail_waiting(Environment.objects.get())

    clone = client_of(ada).send("POST", f"/jobs/{first['id']}/retry", {}).json()

    assert Job.objects.get(pk=first["id"]).exit_kind == "environment"
    assert Environment.objects.filter(jobs=clone["id"]).get().state == EnvironmentState.WAITING


def test_job_from_before_packages_keeps_berths_own_when_it_is_run_again(
    make_job, store_script, client_of, ada, make_device
):
    make_device()
    job = make_job(bundle=store_script(SCRIPT.encode()))

    clone = client_of(ada).send("POST", f"/jobs/{job.pk}/retry", {}).json()

    assert clone["environment"] is None
    assert Environment.objects.count() == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"with_packages": ["transformers=>4"]}, "'transformers=>4' is not a requirement"),
        ({"environment": "gone.txt"}, "There is no file 'gone.txt' in the code"),
        ({"environment": {"files": {"../x.txt": "a"}}}, "is not a file's name"),
        ({"environment": {"files": {}}}, "environment"),
    ],
)
def test_packages_that_cannot_be_read_are_refused_before_the_job_is_kept(submit, fields, words):
    answer = submit(**fields)

    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert Job.objects.count() == 0


def test_program_of_a_command_may_come_with_the_packages(client_of, ada, make_device):
    make_device()
    command = {"source": {"text": "print(1)\n"}, "command": ["accelerate-of-mine", "launch", "train.py"]}

    without = client_of(ada).send("POST", "/jobs", command)
    with_them = client_of(ada).send("POST", "/jobs", {**command, "with_packages": ["accelerate-of-mine"]})

    assert (without.status_code, with_them.status_code) == (422, 201)
    assert "There is no program 'accelerate-of-mine'" in without.json()["detail"]


def test_page_of_a_job_without_its_packages_says_why_and_offers_to_edit_it(submit, home, ada):
    job = submit().json()
    why = fact(Ended.ENVIRONMENT_FAILED, cause="conflict", origin="train.py", message="a needs b<1")
    Environment.objects.update(state=EnvironmentState.FAILED, why=why.as_json())
    preparing.fail_waiting(Environment.objects.get())
    browser = Client()
    browser.force_login(ada)

    page = browser.get(f"/jobs/{job['id']}").content.decode()

    assert (
        "The packages of train.py exclude one another. a needs b&lt;1. Loosen one of these versions." in page
    )
    assert "Clone and edit" in page


def test_page_shows_versions_and_what_was_said_while_they_were_installed(submit, home, ada):
    job = submit().json()
    row = ready(Environment.objects.get())
    log = home.environments.log(row.pk)
    log.parent.mkdir(parents=True)
    log.write_text("Installed 1 package in 3ms\n")
    browser = Client()
    browser.force_login(ada)

    page = browser.get(f"/jobs/{job['id']}").content.decode()

    assert "1 package of <bdi>train.py</bdi>" in page
    assert "Installed 1 package in 3ms" in page
