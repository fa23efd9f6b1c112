"""Data that jobs name by its address, fetched by the real program from a server on this machine."""

import dataclasses
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.client import HTTPMessage
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from orchestrator.exceptions import Impossible
from orchestrator.jobs import fetches, preparations
from orchestrator.jobs.data import eviction, fetching
from orchestrator.jobs.data.causes import CannotFetch
from orchestrator.jobs.data.sources import Redirects
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.submission import clones, intake
from orchestrator.models import ExitKind, Fetch, FetchState, Job, JobState
from orchestrator.people import secrets
from orchestrator.scheduler import passes
from orchestrator.scheduler import waiting as waits
from orchestrator.spec.job_spec import JobSpec
from orchestrator.supervisor.protocol.records import read_record
from tests.jobs.test_archives import make_tar
from tests.jobs.web_files import Files, serve_files
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
READ_IT = b"import os; open(os.environ['BERTH_OUTPUT_DIR'] + '/said', 'w').write(open(os.environ['BERTH_DATASET_NUMBERS_CSV']).read())\n"


@pytest.fixture
def files(home, settings) -> Iterator[Files]:
    """A server inside the network, which the operator allows."""
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, data_allow=("127.0.0.1",))
    with serve_files() as files:
        yield files


@pytest.fixture
def submit(home, make_device, ada) -> Callable[..., Job]:
    """A job that names data, as its owner submits it; a device is free for it."""
    make_device()

    def make(*references: str, owner: User = ada, script: bytes = b"print('hello')\n") -> Job:
        spec = JobSpec.model_validate({"datasets": list(references), "source": {"text": script.decode()}})
        return intake.accept(owner, spec).job

    return make


def fetched(job: Job) -> Fetch:
    """The only fetch of a job, after it was done or given up."""
    row = job.fetches.get()
    fetching.fetch(row.pk)
    row.refresh_from_db()
    job.refresh_from_db()
    return row


def path_of(job: Job) -> Path:
    (path,) = fetches.paths_of(job).values()
    return path


def test_job_waits_for_its_data_and_runs_with_it_read_only(files, submit, home):
    files.contents["numbers.csv"] = b"1,2,3\n"
    job = submit(files.address("numbers.csv"), script=READ_IT)

    passes.run_pass()
    job.refresh_from_db()
    assert (job.state, job.wait_code) == (JobState.QUEUED, "data")
    assert waits.sentence(job, timezone.now(), "") == f"Waits for {files.address('numbers.csv')}."
    assert fetched(job).state == FetchState.READY
    passes.run_pass()
    launcher.start(job.attempts.get())

    folder = home.job(job.pk)
    wait_until(folder.attempt(1).exit.exists)
    assert (read_record(folder.attempt(1).exit) or {})["kind"] == "ok"
    assert (folder.output / "said").read_text() == "1,2,3\n"
    launch: dict[str, Any] = read_record(folder.attempt(1).launch) or {}
    assert str(path_of(job)) in launch["read_only"]


def test_second_job_of_an_address_waits_for_the_same_fetch(files, submit, bob):
    files.contents["a.bin"] = b"x" * 1000
    first, second = submit(files.address("a.bin")), submit(files.address("a.bin"), owner=bob)

    fetched(first)
    asked = len(files.requests)
    third = submit(files.address("a.bin"))

    assert first.fetches.get() == second.fetches.get() == third.fetches.get()
    assert third.fetches.get().state == FetchState.READY
    assert len(files.requests) == asked


def test_wait_tells_how_much_has_come(files, submit):
    job = submit(files.address("big.bin"))
    Fetch.objects.update(state=FetchState.FETCHING, done_bytes=1_288_490_189, total_bytes=3_650_722_202)

    passes.run_pass()

    job.refresh_from_db()
    sentence = waits.sentence(job, timezone.now(), "")
    assert sentence == f"Fetching 1.2 GiB of 3.4 GiB from {files.address('big.bin')}."


def test_dropped_connection_is_gone_on_with_where_it_broke(files, submit):
    files.contents["big.bin"] = os.urandom(3_000_000)
    files.cut_after["big.bin"] = 1_000_000
    job = submit(files.address("big.bin"))

    row = fetched(job)
    assert (row.state, row.tries, job.state) == (FetchState.WAITING, 1, JobState.QUEUED)
    passes.run_pass()
    job.refresh_from_db()
    assert "which could not be reached; next try in" in waits.sentence(job, timezone.now(), "")

    assert fetched(job).state == FetchState.READY
    assert path_of(job).read_bytes() == files.contents["big.bin"]
    assert files.requests[-1] == ("big.bin", "bytes=1000000-")


def test_part_of_an_older_version_is_not_gone_on_with(files, submit):
    files.contents["big.bin"] = os.urandom(2_000_000)
    files.cut_after["big.bin"] = 1_000_000
    job = submit(files.address("big.bin"))
    fetched(job)
    files.contents["big.bin"] = os.urandom(2_000_000)

    assert fetched(job).state == FetchState.READY
    assert path_of(job).read_bytes() == files.contents["big.bin"]


def test_checksum_that_fits_is_taken_and_fixes_the_content_for_later_jobs(files, submit):
    files.contents["a.bin"] = b"what was agreed"
    address = f"{files.address('a.bin')}#sha256={hashlib.sha256(b'what was agreed').hexdigest()}"

    first = submit(address)
    fetched(first)
    Fetch.objects.update(created_at=timezone.now() - timedelta(days=200))

    assert submit(address).fetches.get() == first.fetches.get()


def test_archive_is_unpacked_while_the_job_waits(files, submit):
    files.contents["digits.tar.gz"] = make_tar([("train/1.txt", b"one"), ("train/2.txt", b"two")])
    address = files.address("digits.tar.gz")
    job, plain = submit(f"{address}#unpack"), submit(address)

    row = fetched(job)

    assert row.state == FetchState.READY, job.exit_detail
    found = {path.name: path.read_bytes() for path in path_of(job).rglob("*") if path.is_file()}
    assert (row.files, row.total_bytes, found) == (2, 6, {"1.txt": b"one", "2.txt": b"two"})
    assert not (path_of(job).parent / "archive").exists()
    assert plain.fetches.get() != row
    files.contents["list.csv"] = b"1,2"
    broken = submit(f"{files.address('list.csv')}#unpack")
    fetched(broken)
    assert broken.ending["facts"]["cause"] == "archive"
    assert "list.csv is neither a zip nor a tar archive" in broken.exit_detail


def test_unfixed_address_is_asked_again_after_a_day_and_unchanged_files_are_not_sent_again(files, submit):
    files.contents["a.bin"] = b"x" * 5000
    first = submit(files.address("a.bin"))
    old = fetched(first)
    Fetch.objects.update(created_at=timezone.now() - timedelta(days=2))
    asked = len(files.requests)

    second = submit(files.address("a.bin"))
    new = fetched(second)

    assert new.pk != old.pk
    assert new.key == old.key
    assert files.requests[asked:] == [("a.bin", "bytes=0-0")]
    files.contents["a.bin"] = b"y" * 5000
    Fetch.objects.update(created_at=timezone.now() - timedelta(days=2))
    third = submit(files.address("a.bin"))
    fetched(third)
    assert path_of(third).read_bytes() == b"y" * 5000
    assert path_of(first).read_bytes() == b"x" * 5000


def test_archive_that_did_not_change_is_neither_sent_nor_unpacked_again(files, submit):
    files.contents["digits.tar.gz"] = make_tar([("train/1.txt", b"one"), ("train/2.txt", b"two")])
    address = f"{files.address('digits.tar.gz')}#unpack"
    first = fetched(submit(address))
    for _ in range(2):
        Fetch.objects.update(created_at=timezone.now() - timedelta(days=2))
        asked = len(files.requests)
        job = submit(address)

        again = fetched(job)

        assert (again.state, again.key, again.total_bytes) == (FetchState.READY, first.key, 6)
        assert again.pk != first.pk
        assert files.requests[asked:] == [("digits.tar.gz", "bytes=0-0")]
    files.contents["digits.tar.gz"] = make_tar([("train/1.txt", b"another")])
    Fetch.objects.update(created_at=timezone.now() - timedelta(days=2))
    changed = submit(address)
    assert fetched(changed).total_bytes == 7
    assert (path_of(changed) / "train/1.txt").read_bytes() == b"another"
    assert (path_of(job) / "train/1.txt").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("path", "cause", "words"),
    [
        ("gone.csv", "missing", "There is nothing at "),
        ("closed.csv", "denied", "an address that is signed"),
        ("a.bin#sha256=" + "0" * 64, "checksum", "is not what the job asked for: a.bin has the SHA-256 "),
        ("inside", "private", "An administrator can allow its host (BERTH_DATA_ALLOW)."),
    ],
)
def test_data_that_cannot_be_had_ends_the_job_with_what_to_do(files, submit, path, cause, words):
    files.contents["a.bin"] = b"content"
    files.statuses["closed.csv"] = 403
    files.targets["inside"] = "http://169.254.169.254/latest/meta-data"  # where clouds keep credentials
    job = submit(files.address(path))

    row = fetched(job)

    assert row.state == FetchState.FAILED
    assert (job.state, job.exit_kind, job.attempts.count()) == (JobState.FAILED, ExitKind.DATA, 0)
    assert job.ending["facts"]["cause"] == cause
    assert words in job.exit_detail
    assert files.address(path.partition("#")[0]) in job.exit_detail


def test_address_inside_the_network_is_refused_unless_the_operator_allows_it(files, submit, settings):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, data_allow=())
    files.contents["a.bin"] = b"content"
    checksum = hashlib.sha256(b"content").hexdigest()

    job = submit(f"{files.address('a.bin')}#sha256={checksum}")
    fetched(job)

    assert job.ending["facts"]["cause"] == "private"
    assert "127.0.0.1 is not a public address" in job.exit_detail
    assert files.requests == []


def test_address_without_encryption_needs_a_checksum(home, ada, submit):
    with pytest.raises(Impossible, match="is not encrypted") as refusal:
        submit("http://data.example/a.bin")
    assert list(refusal.value.fields) == ["datasets"]


@pytest.mark.parametrize(
    ("begin", "end", "has_checksum"),
    [("https", "http", True), ("https", "https", False), ("http", "http", False)],
    ids=["checksum", "https", "http-allowed"],
)
def test_redirect_is_followed_where_nobody_can_change_what_comes(begin, end, has_checksum):
    followed = redirect(f"{begin}://data.example/a", f"{end}://store.example/a", has_checksum=has_checksum)

    assert followed is not None
    assert followed.full_url == f"{end}://store.example/a"


def test_redirect_out_of_encryption_is_refused_without_a_checksum():
    with pytest.raises(CannotFetch, match=r"It leads on to http://store.example/a\.") as refusal:
        redirect("https://data.example/a", "http://store.example/a?password=1", has_checksum=False)
    assert refusal.value.cause == "unencrypted"


def redirect(begin: str, end: str, *, has_checksum: bool) -> Request | None:
    """What is asked next where a server answers with another address."""
    handler = Redirects(has_checksum=has_checksum)
    return handler.redirect_request(Request(begin), io.BytesIO(), 302, "Found", HTTPMessage(), end)  # noqa: S310 -- nothing is opened


def test_server_that_is_down_is_tried_again_and_then_given_up(files, submit):
    files.statuses["a.bin"] = 503
    job = submit(files.address("a.bin"))

    states = [fetched(job).state for _ in range(preparations.MOST_TRIES)]

    assert states == [FetchState.WAITING] * (preparations.MOST_TRIES - 1) + [FetchState.FAILED]
    assert "Run the job again later" in job.exit_detail


def test_data_larger_than_the_cache_is_refused_before_it_is_fetched(files, submit, settings, monkeypatch):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, data_cache_gib=1)
    monkeypatch.setattr(eviction, "GIB", 1000)
    files.contents["big.bin"] = b"x" * 1001
    job = submit(files.address("big.bin"))

    fetched(job)

    assert job.ending["facts"]["cause"] == "quota"
    assert "It has 1,001 bytes, and there is room for 1,000." in job.exit_detail
    assert files.requests == [("big.bin", "bytes=0-0")]


def test_full_cache_loses_what_was_used_longest_ago_and_no_job_needs(files, submit, settings, monkeypatch):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, data_cache_gib=1)
    monkeypatch.setattr(eviction, "GIB", 3000)
    jobs = {}
    for age, name in enumerate(["needed", "older", "newer"]):
        files.contents[name] = name.encode() * 100
        jobs[name] = submit(files.address(name))
        place = settings.HOME.fetched.tree(fetched(jobs[name]).key)
        os.utime(place, (1000 + age, 1000 + age))
    Job.objects.exclude(pk=jobs["needed"].pk).update(state=JobState.SUCCEEDED)
    files.contents["new"] = b"x" * 1800

    fetched(submit(files.address("new")))

    there = {name: settings.HOME.fetched.tree(job.fetches.get().key).exists() for name, job in jobs.items()}
    assert there == {"needed": True, "older": False, "newer": True}


def test_data_that_no_job_used_for_a_month_is_removed_and_fetched_again_when_asked_for(files, submit, home):
    files.contents["a.bin"] = b"content"
    job = submit(files.address("a.bin"))
    place = home.fetched.tree(fetched(job).key)
    os.utime(place, (1000, 1000))

    eviction.sweep(timezone.now())
    assert place.exists()  # a job waits
    Job.objects.update(state=JobState.SUCCEEDED)
    eviction.sweep(timezone.now())
    assert not place.exists()

    again = submit(files.address("a.bin"))
    assert again.fetches.get().state == FetchState.WAITING
    assert fetched(again).state == FetchState.READY


def test_fetch_that_no_job_waits_for_any_more_is_stopped(files, submit):
    files.contents["a.bin"] = b"content"
    job = submit(files.address("a.bin"))

    def cancel(_: object) -> None:
        Job.objects.update(state=JobState.CANCELLED)
        connection.close()  # that of the thread which answers

    files.before = cancel

    assert fetched(job).state == FetchState.FAILED


def test_clone_gets_the_very_data_of_its_job(files, submit, ada):
    files.contents["a.bin"] = b"as it was"
    job = submit(files.address("a.bin"))
    fetched(job)
    Fetch.objects.update(created_at=timezone.now() - timedelta(days=300))
    Job.objects.update(state=JobState.SUCCEEDED, ended_at=timezone.now())
    files.contents["a.bin"] = b"as it is"
    job.refresh_from_db()

    clone = clones.retry(ada, job, resume=False, changes={})

    assert path_of(clone).read_bytes() == b"as it was"


def test_two_names_for_one_address_are_one_fetch_and_one_name_for_two_is_refused(files, submit):
    files.contents["a.bin"] = b"content"
    address = files.address("a.bin")
    job = submit(f"train={address}", f"test={address}")

    fetched(job)

    assert set(fetches.paths_of(job)) == {"train", "test"}
    with pytest.raises(
        Impossible, match="would both be BERTH_DATASET_A_BIN; give one of them, or another name"
    ):
        submit(address, files.address("other/a.bin"))


def test_fetch_that_needed_credentials_is_not_shared(files, submit, ada, bob):
    first, second = submit(files.address("a.bin")), submit(files.address("a.bin"), owner=bob)
    row = first.fetches.get()
    row.is_private = True
    row.save()

    fetching.part_from_others(row)

    assert second.fetches.get().owner == bob
    assert first.fetches.get().owner == ada
    assert submit(files.address("a.bin"), owner=bob).fetches.get() == second.fetches.get()


def test_credentials_reach_the_program_and_neither_its_log_nor_its_command(home, ada):
    secrets.keep(ada, "HF_TOKEN", "hf_verysecret")

    assert fetches.credentials(ada, "hf") == {"HF_TOKEN": "hf_verysecret"}
    assert fetches.credentials(ada, "https") == {}
    assert "hf_verysecret" not in fetches.environment({"HF_TOKEN": "hf_verysecret"}).values()
