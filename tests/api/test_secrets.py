"""Secrets for jobs: stored sealed, named in a job, seen by its processes alone."""

import pytest

from orchestrator.models import Job, JobEvent, JobSecret
from orchestrator.people import secrets

VALUE = "hf_0123456789-quiet"


def test_a_value_goes_in_and_never_comes_out(client_of, ada):
    client = client_of(ada)

    answer = client.send("PUT", "/secrets/HF_TOKEN", {"value": VALUE})

    assert answer.status_code == 200
    assert answer.json()["name"] == "HF_TOKEN"
    listed = client.send("GET", "/secrets")
    assert [each["name"] for each in listed.json()["results"]] == ["HF_TOKEN"]
    assert VALUE not in answer.content.decode() + listed.content.decode()


def test_the_database_alone_does_not_open_it(ada, home):
    secrets.keep(ada, "HF_TOKEN", VALUE)

    sealed = bytes(JobSecret.objects.get().sealed)

    assert VALUE.encode() not in sealed
    assert home.secrets_key.stat().st_mode & 0o777 == 0o600
    assert secrets.reveal(ada, ["HF_TOKEN"]) == {"HF_TOKEN": VALUE}


def test_a_second_value_replaces_the_first(ada, home):
    secrets.keep(ada, "HF_TOKEN", "old")
    secrets.keep(ada, "HF_TOKEN", "new")

    assert secrets.reveal(ada, ["HF_TOKEN"]) == {"HF_TOKEN": "new"}


def test_a_secret_sealed_with_another_key_says_so(ada, home):
    secrets.keep(ada, "HF_TOKEN", VALUE)
    JobSecret.objects.update(sealed=b"gAAAAA" + b"A" * 90)

    with pytest.raises(secrets.SecretLost, match="another key"):
        secrets.reveal(ada, ["HF_TOKEN"])


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "BERTH_HOME", "A=B", "9LIVES", "a" * 200])
def test_b33_what_steers_a_launch_is_no_name_for_a_secret(client_of, ada, name):
    answer = client_of(ada).send("PUT", f"/secrets/{name}", {"value": VALUE})

    assert answer.status_code == 400
    assert "name" in answer.json()["errors"]


@pytest.mark.parametrize("value", ["", "a\0b", "x" * 20_000])
def test_a_value_no_variable_can_hold_is_refused(client_of, ada, value):
    answer = client_of(ada).send("PUT", "/secrets/HF_TOKEN", {"value": value})

    assert answer.status_code == 400
    assert "value" in answer.json()["errors"]


def test_another_person_sees_uses_and_deletes_nothing(client_of, ada, bob, submit):
    secrets.keep(ada, "HF_TOKEN", VALUE)
    client = client_of(bob)

    assert client.send("GET", "/secrets").json()["results"] == []
    client.send("DELETE", "/secrets/HF_TOKEN")
    refused = submit(client, secrets=["HF_TOKEN"])

    assert refused.status_code == 422
    assert "HF_TOKEN" in refused.json()["errors"]["secrets"][0]
    assert JobSecret.objects.filter(owner=ada).count() == 1


def test_a_job_names_its_secret_and_shows_only_the_name(client_of, ada, submit):
    secrets.keep(ada, "HF_TOKEN", VALUE)

    made = submit(client_of(ada), secrets=["HF_TOKEN"])

    assert made.status_code == 201
    assert made.json()["secrets"] == ["HF_TOKEN"]
    kept = str(list(Job.objects.values())) + str(list(JobEvent.objects.values()))
    assert VALUE not in kept + made.content.decode()


def test_what_is_deleted_is_gone_and_deleting_twice_is_harmless(client_of, ada):
    client = client_of(ada)
    client.send("PUT", "/secrets/HF_TOKEN", {"value": VALUE})

    for _ in range(2):
        assert client.send("DELETE", "/secrets/HF_TOKEN").status_code == 204

    assert not JobSecret.objects.exists()
