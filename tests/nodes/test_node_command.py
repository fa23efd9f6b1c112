"""``manage.py node``: lists, drains and forgets servers, and refuses what cannot work with a sentence."""

import json
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from orchestrator.agent.inventory import record_inventory
from orchestrator.management.commands.node import _why_ended
from orchestrator.models import AdminState, AuditEntry, Device, Pilot
from orchestrator.nodes.copies import Copy
from orchestrator.nodes.ray_cluster import Address
from orchestrator.nodes.reports import read_reports, write_report
from orchestrator.supervisor.liveness import Liveness
from tests.nodes.test_reports import NODE, gpu, read


@pytest.fixture
def joined(home, db) -> None:
    """A server gpu2 with two GPUs, which has just answered."""
    write_report(home.nodes, NODE, read(gpu(0), gpu(1)))
    record_inventory([info for report in read_reports(home.nodes) for info in report.devices])


@pytest.fixture
def silent(home, joined) -> None:
    """... and has not answered for a minute."""
    path = home.nodes / "gpu2.json"
    report = json.loads(path.read_text())
    path.write_text(json.dumps({**report, "at": report["at"] - 60}))


def node(*words: str) -> str:
    out = StringIO()
    call_command("node", *words, stdout=out)
    return out.getvalue()


def test_list_names_servers_with_devices_and_jobs(joined):
    assert node("list") == "gpu2  answers  2 devices, 0 jobs\n"


def test_list_says_for_how_long_a_server_is_silent(silent):
    assert node("list").startswith("gpu2  silent for ")


def test_list_names_what_a_cluster_lends_with_its_number_and_its_end(joined, make_pool):
    now = timezone.now()
    lent = {
        "pool": make_pool("cluster"),
        "system": "slurm",
        "devices": 2,
        "longest_s": 3600,
        "requested_at": now,
    }
    Pilot.objects.create(
        name="gpu2",
        tag="a",
        grant="17",
        state="held",
        held_at=now,
        until=now + timedelta(minutes=90, seconds=5),
        **lent,
    )
    Pilot.objects.create(
        name="cluster-slurm-1", tag="b", grant="18", state="waiting", reason="Priority", **lent
    )

    assert node("list").splitlines() == [
        "gpu2  answers  2 devices, 0 jobs  Slurm 17, ends in 1 h 30 min",
        "cluster-slurm-1  waiting  Slurm 18 (Priority)",
    ]


def test_list_without_servers_says_so(home, db):
    assert node("list") == "No other server has joined this one.\n"


def test_drained_server_takes_no_job_until_it_is_resumed(joined):
    assert node("drain", "gpu2") == "2 devices of gpu2: draining.\n"
    assert {each.admin_state for each in Device.objects.all()} == {AdminState.DRAINING}
    assert "draining" in node("list")

    node("resume", "gpu2")

    assert [entry.text for entry in AuditEntry.objects.order_by("pk")] == [
        "2 devices of gpu2: draining.",
        "2 devices of gpu2: enabled.",
    ]
    assert {each.admin_state for each in Device.objects.all()} == {AdminState.ENABLED}


@pytest.mark.parametrize("action", ["drain", "resume", "leave"])
def test_server_that_never_joined_is_not_found(home, db, action):
    with pytest.raises(CommandError, match="No server gpu9 has joined"):
        node(action, "gpu9")


def test_server_that_answers_is_not_forgotten(joined):
    with pytest.raises(CommandError, match="still answers"):
        node("leave", "gpu2")


def test_silent_server_without_jobs_is_forgotten(silent, home):
    node("leave", "gpu2")

    assert read_reports(home.nodes) == []


def test_silent_server_with_a_job_is_forgotten_only_when_the_job_is_said_to_be_lost(
    silent, home, make_attempt, make_job
):
    attempt = make_attempt(make_job(), devices=[Device.objects.filter(node="gpu2").first()])
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.root.mkdir(parents=True)
    copy = Copy(folder, attempt.nonce)
    copy.want()
    copy.take()

    with pytest.raises(CommandError, match="1 job may still run on gpu2"):
        node("leave", "gpu2")
    node("leave", "gpu2", "--lost")

    assert copy.state() is Liveness.LOST


def test_token_is_made_once_for_its_owner_alone(home):
    path = Path(node("token").strip())
    first = path.read_text()
    node("token")

    assert path.read_text() == first
    assert len(first) == 64
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["here"], "is no address; give host:port"),
        (["10.0.0.5:6380", "--name", "GPU 2"], "cannot be the name of a server"),
        (["10.0.0.5:6380", "--name", "local"], "cannot be the name of a server"),
        (["10.0.0.5:6380", "--token-file", "nowhere"], "The token file nowhere cannot be read"),
        (["10.0.0.5:6380", "--token-file", "/dev/null"], "The token file /dev/null is empty"),
    ],
)
def test_join_that_cannot_work_is_refused_with_a_sentence(home, words, sentence, tmp_path):
    token = tmp_path / "token"
    token.write_text("t")
    options = [] if "--token-file" in words else ["--token-file", str(token)]

    with pytest.raises(CommandError, match=sentence):
        node("join", *words, *options)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("RuntimeError: Failed to connect to GCS. Last ... Deadline", "10.0.0.5:6380 does not answer."),
        ("Some Ray subprocesses exited unexpectedly", "Ray has ended."),
    ],
)
def test_server_that_may_come_back_is_joined_again(said, sentence):
    assert _why_ended(said, Address("10.0.0.5", 6380)) == sentence


def test_other_version_of_ray_is_named():
    said = "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.60.0"

    with pytest.raises(CommandError, match="another version of Ray or Python"):
        _why_ended(said, Address("10.0.0.5", 6380))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("mnist", "names no dataset; give NAME=PATH"),
        ("=/srv", "names no dataset; give NAME=PATH"),
        ("mnist=/not/there", "There is nothing at /not/there; give the absolute path of dataset mnist"),
        ("mnist=relative", "give the absolute path"),
    ],
)
def test_data_that_is_not_there_is_refused(home, given, sentence):
    with pytest.raises(CommandError, match=sentence):
        node("join", "10.0.0.5:6380", "--token-file", "token", "--data", given)
