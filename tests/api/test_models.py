"""Models: checkpoints with a name, a version and a past, which outlive their job's files and are read by others."""

import io
import tarfile
import zipfile

import pytest

from orchestrator.jobs import datasets
from orchestrator.models import (
    Checkpoint,
    Dataset,
    Job,
    JobState,
    ModelVersion,
    RungReport,
    Sweep,
    SweepTrial,
)
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.metrics.writer import MetricWriter, points_of


@pytest.fixture
def trained(make_job, home):
    """An ended job of ada's with checkpoints at steps 7 and 14."""
    job = make_job(state=JobState.SUCCEEDED)
    folder = home.job(job.pk)
    folder.checkpoints.mkdir(parents=True)
    for step in (7, 14):
        path = folder.checkpoints / "state.pt"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("step", str(step))
        captured = GenerationStore(folder).capture([path], 1, step, lambda: True)
        assert captured is not None
        Checkpoint.objects.create(
            job=job,
            attempt_number=1,
            step=step,
            name=captured.name,
            source="script",
            size_bytes=captured.size_bytes,
            created_at=job.submitted_at,
        )
    return job


@pytest.fixture
def client(client_of, ada):
    return client_of(ada)


@pytest.fixture
def digits(client, trained):
    return client.send("POST", "/models", {"name": "digits", "job": str(trained.pk)}).json()


@pytest.fixture
def sweep(client, make_device) -> Sweep:
    make_device(0)
    body = {
        "job": {"source": {"text": "print(1)"}},
        "set": ["lr=log:1e-5..1e-1"],
        "metric": "loss",
        "direction": "minimize",
        "budget": {"trials": 4},
    }
    return Sweep.objects.get(pk=client.send("POST", "/sweeps", body).json()["id"])


def step_in(data: bytes) -> str:
    return zipfile.ZipFile(io.BytesIO(data)).read("step").decode()


def content(answer) -> bytes:
    return b"".join(answer.streaming_content)


def test_the_newest_checkpoint_becomes_version_one(client, trained):
    made = client.send(
        "POST", "/models", {"name": "digits", "job": str(trained.pk), "description": "for the paper"}
    )

    assert made.status_code == 201, made.content
    model = made.json()
    assert (model["reference"], model["owner"], model["step"]) == ("ada/digits@1", "ada", 14)
    assert (model["job"], model["checkpoint"], model["attempt"]) == (str(trained.pk), "generation 2", 1)
    assert model["description"] == "for the paper"
    assert [event.kind for event in trained.events.order_by("number")][-1] == "made_model"


def test_a_checkpoint_is_chosen_by_its_step_and_makes_the_next_version(client, trained, digits):
    made = client.send(
        "POST", "/models", {"name": "digits", "job": str(trained.pk), "checkpoint": "7"}
    ).json()
    again = client.send(
        "POST", "/models", {"name": "digits", "job": str(trained.pk), "checkpoint": "7"}
    ).json()

    assert (made["version"], made["step"]) == ("2", 7)
    assert again["version"] == "2"  # the same files
    assert [one["reference"] for one in client.send("GET", "/models").json()["results"]] == [
        "ada/digits@2",
        "ada/digits@1",
    ]


def test_a_model_keeps_the_metrics_up_to_its_step_without_the_speed(client, trained, home):
    with MetricWriter(home.job(trained.pk).metrics, 1, 1000.0, None) as writer:
        for step in range(1, 20):
            writer.append(points_of(step, 1000.0 + step, {"loss": 1 / step, "steps_per_s": 4.0}))
        Job.objects.filter(pk=trained.pk).update(metric_seq=writer.flush()["seq"])

    made = client.send(
        "POST", "/models", {"name": "digits", "job": str(trained.pk), "checkpoint": "7"}
    ).json()

    assert made["values"] == {"loss": pytest.approx(1 / 7)}


def test_a_model_outlives_the_files_of_its_job(client, trained, digits, home):
    store = GenerationStore(home.job(trained.pk))
    for generation in store.list():
        store.remove(generation)

    file = client.send("GET", "/models/digits@1/download?file=state.pt")

    assert step_in(content(file)) == "14"
    archive = io.BytesIO(content(client.send("GET", "/models/digits@1/download")))
    with tarfile.open(fileobj=archive) as files:
        assert files.getnames() == ["state.pt"]


def test_jobs_read_a_model_as_a_dataset_and_are_listed_with_it(client, make_job, digits, ada):
    path = datasets.checked_path(datasets.resolve("digits@1", ada))
    reader = make_job(spec={"datasets": ["digits@1"]}, name="evaluate")

    shown = client.send("GET", "/models/digits").json()

    assert step_in(path.read_bytes()) == "14"
    assert shown["files"] == [{"path": "state.pt", "size_bytes": path.stat().st_size}]
    assert shown["readers"] == [{"id": str(reader.pk), "name": "evaluate"}]


def test_a_model_that_a_waiting_job_reads_is_not_removed(client, make_job, digits):
    reader = make_job(spec={"datasets": ["ada/digits@1"]})

    refused = client.send("DELETE", "/models/digits@1")
    reader.state = JobState.CANCELLED
    reader.save()
    removed = client.send("DELETE", "/models/digits@1")

    assert refused.status_code == 409
    assert "cancel it, or wait for its end" in refused.json()["detail"]
    assert removed.status_code == 204
    assert not ModelVersion.objects.exists()
    assert not Dataset.objects.exists()


def test_the_model_of_another_person_is_not_found(client_of, bob, digits):
    for method, path in (
        ("GET", "/models/ada/digits@1"),
        ("GET", "/models/ada/digits@1/download"),
        ("DELETE", "/models/ada/digits@1"),
    ):
        assert client_of(bob).send(method, path).status_code == 404
    assert client_of(bob).send("GET", "/models").json()["results"] == []


def test_nobody_makes_a_model_of_a_job_that_they_may_not_see(client_of, bob, trained):
    answer = client_of(bob).send("POST", "/models", {"name": "mine", "job": str(trained.pk)})

    assert answer.status_code == 404


def test_a_damaged_checkpoint_makes_no_model(client, trained, home):
    newest = GenerationStore(home.job(trained.pk)).list()[0]
    kept = newest.folder / newest.files[0].kept
    kept.chmod(0o644)
    kept.write_bytes(b"x" * kept.stat().st_size)

    answer = client.send("POST", "/models", {"name": "digits", "job": str(trained.pk)})

    assert answer.status_code == 409
    assert "generation 2 is damaged" in answer.json()["detail"]
    assert not Dataset.objects.exists()


def test_a_checkpoint_that_is_gone_is_told(client, trained, make_job):
    unknown = client.send("POST", "/models", {"name": "digits", "job": str(trained.pk), "checkpoint": "8"})
    without = client.send("POST", "/models", {"name": "digits", "job": str(make_job().pk)})

    assert (unknown.status_code, unknown.json()["detail"]) == (404, "The job has no checkpoint '8'.")
    assert "has no checkpoint to make a model of" in without.json()["detail"]


@pytest.mark.parametrize(
    "body", [{"name": "x"}, {"name": "x", "job": "1", "sweep": "2"}, {"name": "../x", "job": "JOB"}]
)
def test_a_body_without_one_source_or_with_a_wrong_name_is_refused(client, trained, body):
    body = {name: str(trained.pk) if value == "JOB" else value for name, value in body.items()}

    answer = client.send("POST", "/models", body)

    assert answer.status_code in {400, 422}
    assert answer.json()["detail"]


def test_the_best_trial_of_a_sweep_becomes_a_model(client, trained, make_job, sweep):
    for number, (job, loss) in enumerate([(make_job(), 0.7), (trained, 0.2)], start=1):
        trial = SweepTrial.objects.create(
            sweep=sweep, number=number, settings={}, job=job, state="ended", created_at=job.submitted_at
        )
        RungReport.objects.create(trial=trial, rung=1, value=loss)

    made = client.send("POST", "/models", {"name": "digits", "sweep": str(sweep.pk)}).json()

    assert made["job"] == str(trained.pk)
