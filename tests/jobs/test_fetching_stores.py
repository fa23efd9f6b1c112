"""Buckets and repositories, read by their own clients, which Berth installs for that."""

import os
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User

from orchestrator.jobs import fetches
from orchestrator.jobs.data import fetching
from orchestrator.jobs.submission import intake
from orchestrator.models import Fetch, FetchState, Job
from orchestrator.people import secrets
from orchestrator.spec.job_spec import JobSpec
from tests.conftest import lacking
from tests.jobs.stores import Stores, serve_stores

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def stores(home, monkeypatch) -> Iterator[Stores]:
    with serve_stores() as stores:
        monkeypatch.setenv("HF_ENDPOINT", stores.address)
        monkeypatch.setenv("AWS_ENDPOINT_URL", stores.address)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stores.address)
        yield stores


@pytest.fixture
def submit(home, make_device, ada) -> Callable[..., Job]:
    make_device()

    def make(reference: str, owner: User = ada) -> Job:
        spec = JobSpec.model_validate({"datasets": [reference], "source": {"text": "print()"}})
        return intake.accept(owner, spec).job

    return make


def fetched(job: Job) -> Fetch:
    row = job.fetches.get()
    fetching.fetch(row.pk)
    row.refresh_from_db()
    job.refresh_from_db()
    if row.why and "could not be installed" in job.exit_detail:
        lacking(f"packages to install: {job.exit_detail}")
    return row


def contents(job: Job) -> dict[str, bytes]:
    (path,) = fetches.paths_of(job).values()
    return {
        file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def test_bucket_is_fetched_with_the_persons_keys_where_it_is_not_public(stores, submit, ada, bob):
    stores.objects = {
        "digits/train.bin": os.urandom(40_000),
        "digits/more/test.bin": b"test",
        "other": b"not this",
    }
    stores.key = "AKIAOFADA"
    refused = submit("s3://lab/digits", owner=bob)
    fetched(refused)
    assert "your secrets AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in refused.exit_detail

    secrets.keep(ada, "AWS_ACCESS_KEY_ID", "AKIAOFADA")
    secrets.keep(ada, "AWS_SECRET_ACCESS_KEY", "verysecret")
    job = submit("s3://lab/digits")
    row = fetched(job)

    assert (row.state, row.is_private) == (FetchState.READY, True), job.exit_detail
    assert contents(job) == {"train.bin": stores.objects["digits/train.bin"], "more/test.bin": b"test"}
    assert submit("s3://lab/digits", owner=bob).fetches.get() != row
    missing = submit("s3://lab/gone")
    fetched(missing)
    assert "There is nothing at s3://lab/gone" in missing.exit_detail


def test_bucket_of_google_is_fetched_and_shared_where_it_is_public(stores, submit, bob):
    stores.objects = {"digits/train.bin": os.urandom(40_000), "digits/more/test.bin": b"test", "other": b"x"}
    job = submit("gs://lab/digits")

    row = fetched(job)

    assert (row.state, row.is_private) == (FetchState.READY, False), job.exit_detail
    assert contents(job) == {"train.bin": stores.objects["digits/train.bin"], "more/test.bin": b"test"}
    assert submit("gs://lab/digits", owner=bob).fetches.get() == row
    missing = submit("gs://lab/gone")
    fetched(missing)
    assert "There is nothing at gs://lab/gone" in missing.exit_detail


def test_repository_is_fetched_of_one_commit_and_shared_where_it_is_public(stores, submit, bob, home):
    stores.files = {"README.md": b"# Digits\n", "data/train.parquet": os.urandom(50_000)}
    job = submit("hf://datasets/lab/digits")

    row = fetched(job)

    assert (row.state, row.is_private) == (FetchState.READY, False), job.exit_detail
    assert contents(job) == stores.files
    assert submit("hf://datasets/lab/digits", owner=bob).fetches.get() == row
    stores.key = "hf_token"
    closed = submit("hf://datasets/lab/digits@v2")
    fetched(closed)
    assert "your secret HF_TOKEN" in closed.exit_detail
