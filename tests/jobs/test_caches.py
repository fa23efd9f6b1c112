"""What jobs of one person leave for the next."""

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest

from orchestrator.jobs import caches, shared_models
from orchestrator.jobs.launch import isolation, launcher
from orchestrator.models import ExitKind, Job
from orchestrator.store.layout import Home
from orchestrator.supervisor.protocol.records import read_record
from tests.waiting import wait_until

LOOK = b"""
import os, pathlib
model = pathlib.Path(os.environ["HF_HOME"], "model")
there = model.exists()
model.parent.mkdir(parents=True, exist_ok=True)
model.write_text("weights")
others = sorted(path.name for path in pathlib.Path(os.environ["HF_HOME"]).parents[1].iterdir())
pathlib.Path(os.environ["BERTH_OUTPUT_DIR"], "said").write_text(f"{there} {len(others)}")
"""


USE_SHARED = b"""
import json, os, pathlib
model = pathlib.Path(os.environ["HF_HOME"], "hub/models--lab--tiny")
config = model / "snapshots/c1/config.json"
said = {"text": config.read_text(), "main": (model / "refs/main").read_text()}
try:
    config.write_text("changed")
except OSError as error:
    said["written"] = error.strerror
(model / "snapshots/c2").mkdir()
(model / "refs/main").write_text("c2")
said["token"] = (config.resolve().parents[3] / "token").exists()
pathlib.Path(os.environ["BERTH_OUTPUT_DIR"], "said").write_text(json.dumps(said))
"""


@pytest.fixture
def shared(home: Home) -> Path:
    """A model that an administrator downloaded for everybody, with a token beside it."""
    model = home.shared_models / "huggingface/hub/models--lab--tiny"
    for folder in ("blobs", "snapshots/c1", "refs"):
        (model / folder).mkdir(parents=True)
    (model / "blobs/abc").write_text("weights")
    (model / "blobs/def.incomplete").write_text("half")
    (model / "snapshots/c1/config.json").symlink_to("../../blobs/abc")
    (model / "refs/main").write_text("c1")
    (home.shared_models / "huggingface/token").write_text("secret")
    return model


def finish(home: Home, make_attempt, job: Job) -> str:
    """Run a job; what it says it found."""
    launcher.start(make_attempt(job))
    folder = home.job(job.pk)
    wait_until(folder.attempt(1).exit.exists)
    assert (read_record(folder.attempt(1).exit) or {})["kind"] == ExitKind.OK
    return (folder.output / "said").read_text()


@pytest.mark.django_db(transaction=True)
def test_job_finds_what_an_earlier_job_of_its_owner_downloaded_and_nothing_of_others(
    home, make_attempt, make_job, store_script, ada, bob, settings
):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, trust_all_users=True)
    bundle = store_script(LOOK)

    first, second, of_bob = (
        finish(home, make_attempt, make_job(owner=owner, bundle=bundle)) for owner in (ada, ada, bob)
    )

    seen = 1 if isolation.level() else 2  # without a sandbox nothing is hidden
    assert (first, second, of_bob) == ("False 1", "True 1", f"False {seen}")


@pytest.mark.django_db(transaction=True)
def test_without_a_limit_for_caches_there_are_none(make_job, settings):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, user_cache_gib=0)

    assert caches.folder_of(make_job()) is None
    assert caches.variables(None) == {}


@pytest.mark.django_db(transaction=True)
def test_pool_without_caches_gives_its_jobs_none(home, make_job, make_pool):
    assert caches.folder_of(make_job()) is not None
    assert caches.folder_of(make_job(pool=make_pool("bare", caches=False))) is None


@pytest.mark.django_db(transaction=True)
def test_job_finds_shared_models_read_only_and_downloads_beside_them(
    home, make_attempt, make_job, store_script, shared
):
    job = make_job(bundle=store_script(USE_SHARED))

    said = json.loads(finish(home, make_attempt, job))

    assert (said["text"], said["main"]) == ("weights", "c1")
    if isolation.level():
        assert (said["written"], said["token"]) == ("Read-only file system", False)
        assert (shared / "blobs/abc").read_text() == "weights"
    own = home.cache_of(job.owner_id) / "huggingface/hub/models--lab--tiny"
    assert (own / "refs/main").read_text() == "c2"
    assert (shared / "refs/main").read_text() == "c1"
    assert not (own / "blobs/def.incomplete").exists()
    assert caches.trim(home.cache_of(job.owner_id), 0) >= 0
    assert (shared / "blobs/abc").exists()


@pytest.mark.django_db(transaction=True)
def test_pool_without_caches_sees_no_shared_models(
    home, make_attempt, make_job, make_pool, shared, store_script
):
    job = make_job(pool=make_pool("bare", caches=False), bundle=store_script(b"print()"))
    attempt = make_attempt(job)

    launcher.prepare(job, attempt)

    launch = read_record(home.job(job.pk).attempt(1).launch) or {}
    assert "shared-models" not in str(launch["read_only"])


def test_what_a_person_has_already_is_kept_and_their_links_are_not_followed(home, shared, tmp_path):
    outside, cache = tmp_path / "outside", tmp_path / "cache"
    outside.mkdir()
    own = cache / "huggingface/hub/models--lab--tiny"
    own.mkdir(parents=True)
    (own / "blobs").symlink_to(outside)
    (own / "refs").mkdir()
    (own / "refs/main").write_text("c9")

    for _ in range(2):
        shared_models.show_in(cache)

    assert (own / "refs/main").read_text() == "c9"
    assert list(outside.iterdir()) == []
    assert str((own / "snapshots/c1/config.json").readlink()) == "../../blobs/abc"


def test_files_that_were_not_used_for_longest_are_removed_first(tmp_path):
    for number, name in enumerate(("old", "older/oldest", "new")):
        path = tmp_path / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 8192)
        used_at = time.time() - {0: 200, 1: 300, 2: 0}[number]
        os.utime(path, (used_at, used_at))

    removed_bytes = caches.trim(tmp_path / "cache", 20_000)

    assert removed_bytes == 8192
    assert {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()} == {"old", "new"}
    assert caches.trim(tmp_path / "cache", 20_000) == 0


def test_link_out_of_a_cache_is_removed_and_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x" * 8192)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "link").symlink_to(outside)
    (cache / "file").write_bytes(b"x" * 8192)

    caches.trim(cache, 1)

    assert Path(outside / "kept").exists()
    assert not (cache / "file").exists()
