"""Environments and caches on this server: who sees them, how large they are, and who may remove them."""

import os
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from berth.cli.environments import what_of
from berth.client.server_answers import KeptEnvironment
from orchestrator.jobs import kept_files
from orchestrator.models import AuditEntry, Environment, EnvironmentState, JobState
from tests.dashboard.markup import html_of

KEY = "a" * 40


@pytest.fixture
def environment(home, db) -> Environment:
    """Packages of 12 KiB: two files of 8 KiB, one of which has two names, and one of 4 KiB."""
    place = home.environments.built(KEY).root
    (place / "lib").mkdir(parents=True)
    (place / "lib" / "one.py").write_bytes(b"x" * 8192)
    os.link(place / "lib" / "one.py", place / "lib" / "same.py")
    (place / "lib" / "two.py").write_bytes(b"x" * 4096)
    return Environment.objects.create(
        request={},
        origin="requirements.txt",
        key=KEY,
        state=EnvironmentState.READY,
        packages=[{"name": "tinylib", "version": "1.0"}],
        created_at=timezone.now(),
    )


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def fill(folder: Path, size_bytes: int) -> None:
    folder.mkdir(parents=True)
    (folder / "model").write_bytes(b"x" * size_bytes)


def test_packages_and_the_cache_are_listed_with_sizes_and_who_used_them(
    client_of, home, environment, ada, bob, root, make_job
):
    make_job(environment=environment, state=JobState.SUCCEEDED)
    fill(home.cache_of(ada.pk) / "huggingface", 8192)
    fill(home.cache_of(bob.pk) / "torch", 4096)
    fill(home.mirrors / str(ada.pk) / "repository", 4096)
    assert client_of(ada).get("/api/v1/environments").json()["measured_at"] is None

    kept_files.measure(timezone.now())

    mine = client_of(ada).get("/api/v1/environments").json()
    (one,) = mine["environments"]
    assert (one["key"], one["size_bytes"], one["last_used_by"], one["jobs"]) == (KEY, 12288, "ada", 1)
    assert (one["packages"], one["may_remove"]) == ([{"name": "tinylib", "version": "1.0"}], True)
    (cache,) = mine["caches"]
    assert (cache["owner"], cache["folders"]) == ("ada", {"git": 4096, "huggingface": 8192})
    of_bob = client_of(bob).get("/api/v1/environments").json()
    assert (of_bob["environments"], [each["owner"] for each in of_bob["caches"]]) == ([], ["bob"])
    everything = client_of(root).get("/api/v1/environments").json()
    assert [each["owner"] for each in everything["caches"]] == ["ada", "bob"]


def test_an_image_is_listed_by_its_name_and_digest_and_not_as_packages(
    client_of, home, environment, ada, make_job
):
    digest = f"sha256:{'4f' * 32}"
    Environment.objects.update(
        request={"image": "ghcr.io/lab/train:2"}, origin="ghcr.io/lab/train:2", lock=digest, own_torch=False
    )
    make_job(environment=environment, state=JobState.SUCCEEDED)

    (one,) = client_of(ada).get("/api/v1/environments").json()["environments"]
    page = html_of(signed_in(ada).get("/environments"))

    assert (one["origins"], one["digest"]) == (["ghcr.io/lab/train:2"], digest)
    assert what_of(KeptEnvironment(one)) == "image ghcr.io/lab/train:2 (sha256:4f4f4f4f4f4f)"
    assert "<bdi>ghcr.io/lab/train:2</bdi>" in page
    assert digest in page
    assert "the server's</td>" not in page
    assert "Removed the image" in page


def test_models_that_administrators_keep_are_counted_and_shown_to_everybody(client_of, home, ada):
    fill(home.shared_models / "huggingface" / "hub", 8192)
    fill(home.shared_models / "elsewhere", 4096)  # which jobs do not see

    kept_files.measure(timezone.now())

    assert client_of(ada).get("/api/v1/environments").json()["shared_bytes"]["models"] == 8192
    page = html_of(signed_in(ada).get("/environments"))
    assert "Models that administrators keep for everybody: 8 KiB." in " ".join(page.split())


def test_packages_are_removed_by_those_who_alone_use_them_and_by_admins(
    client_of, home, environment, ada, bob, root, make_job
):
    make_job(environment=environment, state=JobState.SUCCEEDED)
    shared = make_job(bob, environment=environment, state=JobState.QUEUED)
    place = home.environments.built(KEY).root
    address = f"/environments/built/{KEY}"

    assert client_of(ada).send("DELETE", address).status_code == 403
    assert client_of(root).send("DELETE", address).status_code == 409
    type(shared).objects.filter(pk=shared.pk).update(state=JobState.CANCELLED, owner=ada)
    assert client_of(bob).send("DELETE", address).status_code == 404
    assert place.is_dir()
    assert client_of(ada).send("DELETE", address).status_code == 204
    assert not place.exists()
    assert AuditEntry.objects.filter(action="environment.removed").count() == 1
    assert client_of(ada).send("DELETE", address).status_code == 404


def test_cache_is_cleared_by_its_owner_and_by_admins_while_nothing_of_it_runs(
    client_of, home, ada, bob, root, make_attempt
):
    attempt = make_attempt(state=JobState.RUNNING)
    fill(home.cache_of(ada.pk) / "huggingface", 8192)
    kept_files.measure(timezone.now())
    address = "/environments/caches/ada"

    assert client_of(bob).send("DELETE", address).status_code == 404
    assert client_of(ada).send("DELETE", address).status_code == 409
    attempt.job.state = JobState.SUCCEEDED
    attempt.job.save()
    assert client_of(root).send("DELETE", address).status_code == 204
    assert not home.cache_of(ada.pk).exists()
    assert client_of(ada).get("/api/v1/environments").json()["caches"] == []


def test_page_shows_them_with_their_buttons_and_says_what_is_missing_when_empty(
    home, environment, ada, bob, make_job
):
    make_job(environment=environment, state=JobState.SUCCEEDED)
    fill(home.cache_of(ada.pk) / "huggingface", 8192)
    kept_files.measure(timezone.now())

    mine = html_of(signed_in(ada).get("/environments"))
    assert all(text in mine for text in ("tinylib", "12 KiB", "Hugging Face 8 KiB", "requirements.txt"))
    assert f"DELETE /api/v1/environments/built/{KEY}" in mine
    empty = html_of(signed_in(bob).get("/environments"))
    assert "No packages are installed for jobs of yours" in empty
    assert "tinylib" not in empty
