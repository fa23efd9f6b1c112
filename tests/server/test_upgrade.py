"""A server moves to a newer version with its jobs, and is refused the way back without its backup."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from orchestrator.server.operation import first_start
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_jobs_of_the_first_release_are_listed_with_their_history_after_an_upgrade(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.server.first_release"],
        cwd=ROOT,
        env={**os.environ, "BERTH_HOME": str(tmp_path), "DATABASE_URL": "", "BERTH_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    assert told["waiting"][0] == "0002_arrays_and_start_times"
    assert told["after"] == []
    assert told["states"] == {"finished": "succeeded", "cut-off": "running", "waiting": "queued"}
    job = told["job"]
    assert (job["progress"]["step"], job["progress"]["total_steps"]) == (50, 100)
    assert job["args"] == ["--lr", "0.1"]
    assert [each["step"] for each in told["checkpoints"]["results"]] == [50]
    assert told["page"] == 200


@pytest.mark.django_db
def test_a_database_of_a_newer_version_is_refused_with_the_way_back():
    MigrationRecorder(connection).record_applied("orchestrator", "9999_from_the_future")

    with pytest.raises(
        first_start.NotBroughtUpToDate,
        match=r"of a newer Berth .* it has 9999_from_the_future\. .*restore FILE",
    ):
        first_start.migrate()


@pytest.mark.django_db
def test_a_database_of_this_version_has_nothing_waiting():
    assert first_start.unknown_migrations() == []
    assert first_start.waiting_migrations() == []
