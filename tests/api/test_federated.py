"""Federated trainings by REST: jobs of sites and their server, what becomes of them, and who may see them."""

import json

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from orchestrator.federations import controller
from orchestrator.jobs import exchanges
from orchestrator.models import (
    FEDERATION_VARIABLE,
    Checkpoint,
    Federation,
    FederationMember,
    Job,
    JobState,
    ModelVersion,
    Pool,
)
from training.checkpoint import store

CODE = "def build_model(): ...\n"
ASKED = {"model": "train.py:build_model", "sites": 3, "rounds": 2, "job": {"source": {"text": CODE}}}
REPORT = {
    "v": 1,
    "rounds": [
        {"round": 1, "sites": 3, "seconds": 0.5, "metrics": {"accuracy": 0.6}, "epsilon": 1.5},
        {"round": 2, "sites": 2, "seconds": 0.4, "metrics": {"accuracy": 0.9}, "epsilon": 2.5},
    ],
    "lost": [{"site": 1, "round": 2, "why": "its update has NaN or infinite values"}],
    "epsilon": 2.5,
}


@pytest.fixture
def client(client_of, ada, make_device, home):
    Pool.objects.get_or_create(name="cpu")
    for index in range(4):
        make_device(index, kind="cpu", pool_id="cpu")
    return client_of(ada)


def begin(client, **fields):
    return client.send("POST", "/federated", {**ASKED, **fields})


def server_of(federation: Federation) -> Job:
    return FederationMember.objects.get(federation=federation, number=None).job


def advance(federation: Federation) -> Federation:
    controller.advance(Federation.objects.get(pk=federation.pk), timezone.now())
    federation.refresh_from_db()
    return federation


def leave(home, job: Job, *, report: object = None, result: bytes | None = None) -> None:
    """What the server's program leaves."""
    folder = home.job(job.pk)
    folder.output.mkdir(parents=True, exist_ok=True)
    if report is not None:
        (folder.output / "federated.json").write_text(json.dumps(report))
    if result is not None:
        store.write(folder.checkpoints, 1, 2, {}, lambda file: file.write(result))
        Checkpoint.objects.create(
            job=job,
            attempt_number=1,
            step=2,
            name="checkpoint 1-2",
            source="library",
            size_bytes=len(result),
            created_at=timezone.now(),
        )


def end_jobs(federation: Federation, state: str, *, of_server: bool) -> None:
    members = FederationMember.objects.filter(federation=federation, number__isnull=of_server)
    Job.objects.filter(federation_member__in=members).update(state=state)


def test_a_federation_is_a_job_for_each_site_and_one_for_their_server(client):
    answer = begin(client, evaluate_on="train.py:evaluation_data", proximal=0.1, clip=1.0, noise=2.0)

    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert [each["number"] for each in made["sites"]] == [0, 1, 2]
    server, site = Job.objects.get(pk=made["server"]), Job.objects.get(pk=made["sites"][2]["job"])
    assert server.spec.module == site.spec.module == "training.federated"
    assert server.bundle == site.bundle
    common = ["--sites=3", "--data=train.py", "--model=train.py:build_model", "--rounds=2"]
    assert server.spec.args[:5] == ["--part=server", *common]
    assert "--evaluate-on=train.py:evaluation_data" in server.spec.args
    assert site.spec.args[:6] == ["--part=site", "--site=2", *common]
    assert {"--proximal=0.1", "--clip=1.0", "--noise=2.0"} <= set(site.spec.args)
    assert "federated" in site.spec.tags


def test_each_site_sees_its_own_folder_and_the_server_all_of_them(client):
    made = Federation.objects.get(pk=begin(client).json()["id"])
    members = {each.number: each.job for each in made.members.all()}
    root = exchanges.root_of(made.pk)

    site, server = exchanges.of_job(members[1]), exchanges.of_job(members[None])

    assert site is not None
    assert server is not None
    assert site.writable == (root / "sites" / "1",)
    assert not site.read_only
    assert server.writable == (root / "sites",)
    assert server.read_only == (root / "told",)
    assert (root / "sites" / "2").is_dir()
    assert exchanges.variables(site) == {FEDERATION_VARIABLE: str(root)}


def test_another_job_that_names_the_variable_gets_no_folder(client, make_job):
    job = make_job(spec_fields={"entrypoint": "train.py", "env": {FEDERATION_VARIABLE: "x"}})

    assert exchanges.of_job(job) is None


def test_the_server_is_told_of_a_site_that_ended_and_folders_go_when_all_have(client, home):
    made = Federation.objects.get(pk=begin(client).json()["id"])
    root = exchanges.root_of(made.pk)
    first = FederationMember.objects.get(federation=made, number=0).job
    Job.objects.filter(pk=first.pk).update(state=JobState.FAILED)
    advance(made)

    assert (root / "told" / "0").read_text() == "its job has failed"
    assert not (root / "told" / "1").exists()

    leave(home, server_of(made), report=REPORT)
    end_jobs(made, JobState.SUCCEEDED, of_server=True)
    assert advance(made).state == "ended"
    assert root.is_dir()
    end_jobs(made, JobState.SUCCEEDED, of_server=False)
    assert advance(made).cleared
    assert not root.exists()


def test_rounds_and_sites_that_were_left_out_are_told_and_the_result_becomes_a_model(client, home):
    made = Federation.objects.get(pk=begin(client, result="fed").json()["id"])
    leave(home, server_of(made), report=REPORT, result=b"weights")
    end_jobs(made, JobState.SUCCEEDED, of_server=True)
    advance(made)

    told = client.send("GET", f"/federated/{made.short_id}").json()

    assert (told["state"], told["result"]) == ("ended", "ada/fed@1")
    assert ModelVersion.objects.get(dataset__name="fed").step == 2
    assert [each["metrics"]["accuracy"] for each in told["report"]["rounds"]] == [0.6, 0.9]
    assert told["report"]["epsilon"] == 2.5
    assert told["sites"][1]["left_out"] == "left out from round 2 on: its update has NaN or infinite values"
    assert [each["id"] for each in client.send("GET", "/federated").json()["results"]] == [str(made.pk)]


def test_a_site_that_came_back_takes_part(client, home):
    made = Federation.objects.get(pk=begin(client).json()["id"])
    leave(home, server_of(made), report={**REPORT, "inside": [0, 1]})

    sites = client.send("GET", f"/federated/{made.pk}").json()["sites"]

    assert (sites[1]["part"], sites[1]["left_out"]) == ("takes_part", "")


def test_a_result_that_cannot_be_kept_says_so(client, home):
    made = Federation.objects.get(pk=begin(client, result="fed").json()["id"])
    end_jobs(made, JobState.SUCCEEDED, of_server=True)

    assert advance(made).state == "ended"
    reason = client.send("GET", f"/federated/{made.pk}").json()["reason"]
    assert reason.startswith("All rounds are done, but no model could be made of the result:")


def test_a_federation_whose_server_fails_fails_and_stops_its_sites(client):
    made = Federation.objects.get(pk=begin(client).json()["id"])
    end_jobs(made, JobState.FAILED, of_server=True)
    advance(made)

    assert made.state == "failed"
    told = client.send("GET", f"/federated/{made.pk}").json()
    assert told["reason"].startswith("The job of its server has failed.")
    assert {each["state"] for each in told["sites"]} == {"cancelled"}


def test_a_report_of_other_things_is_no_report(client, home):
    made = Federation.objects.get(pk=begin(client).json()["id"])
    leave(home, server_of(made), report={"rounds": "many"})

    assert client.send("GET", f"/federated/{made.pk}").json()["report"]["rounds"] == []


def test_a_nul_in_a_report_is_left_out(client, home):
    made = Federation.objects.get(pk=begin(client).json()["id"])
    lost = [{"site": 1, "round": 2, "why": "gone\0 away"}]
    rounds = [{"round": 1, "sites": 3, "seconds": 0.5, "metrics": {"accu\0racy": 0.6}}]
    leave(home, server_of(made), report={**REPORT, "lost": lost, "rounds": rounds}, result=b"mean")
    end_jobs(made, JobState.SUCCEEDED, of_server=True)

    report = advance(made).report

    assert report["lost"][0]["why"] == "gone away"  # PostgreSQL keeps no NUL
    assert report["rounds"][0]["metrics"] == {"accuracy": 0.6}


def test_a_federation_that_cannot_be_kept_leaves_the_others_alone(client, caplog, monkeypatch):
    broken = Federation.objects.get(pk=begin(client).json()["id"])
    well = Federation.objects.get(pk=begin(client).json()["id"])
    Federation.objects.filter(pk=broken.pk).update(options=["no", "object"])
    monkeypatch.setattr(connection, "close", lambda: None)  # the test goes on with it
    for each in (broken, well):
        end_jobs(each, JobState.FAILED, of_server=True)

    controller.advance_all(Federation.objects.order_by("pk"))
    well.refresh_from_db()

    assert well.state == "failed"
    assert f"Keeping the federation {broken} failed" in caplog.text


def test_stopping_stops_all_jobs_and_repeating_it_is_harmless(client):
    made = begin(client).json()

    for _ in range(2):
        stopped = client.send("POST", f"/federated/{made['id']}/stop").json()
        assert (stopped["state"], stopped["reason"]) == ("stopped", "Stopped by ada, with all its jobs.")
    assert {each["state"] for each in stopped["sites"]} == {"cancelled"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param({"sites": 2}, "sites", id="two sites"),
        pytest.param({"sites": None}, "give sites, or site_datasets", id="no sites"),
        pytest.param({"site_datasets": ["a", "b", "c"]}, "give sites, or site_datasets", id="both"),
        pytest.param({"sites": None, "site_datasets": ["a"]}, "3 to 64 sites in all", id="one dataset"),
        pytest.param({"clip": 1.0}, "both clip and noise", id="half of privacy"),
        pytest.param({"sites": 9}, "need 10 at once", id="more sites than slots"),
        pytest.param({"model": "--help"}, "model", id="an option as function"),
        pytest.param({"result": "../x"}, "name", id="a wrong name of the result"),
        pytest.param(
            {"job": {"source": {"text": CODE}, "args": ["x"]}}, "args is not for sites", id="arguments"
        ),
        pytest.param({"begin_with": "gone"}, "There is no model", id="a model that is not there"),
        pytest.param({"laps": 3}, "unknown field", id="an unknown field"),
    ],
)
def test_a_federation_that_cannot_work_is_refused_with_its_field(client, body, words):
    answer = begin(client, **body)

    assert 400 <= answer.status_code < 500
    assert words in answer.content.decode()
    assert not Federation.objects.exists()
    assert not Job.objects.exists()
    assert not list(settings.HOME.federations.glob("*"))


def test_nobody_sees_or_stops_a_federation_of_others(client, client_of, bob):
    made = begin(client).json()
    other = client_of(bob)

    assert other.send("GET", "/federated").json()["results"] == []
    assert other.send("GET", f"/federated/{made['id']}").status_code == 404
    assert other.send("POST", f"/federated/{made['id']}/stop").status_code == 404
    assert (
        other.send("POST", "/federated", {**ASKED, "job": {"source": {"bundle": "0" * 64}}}).status_code
        == 422
    )
