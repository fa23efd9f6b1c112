"""The page of models: from a job's checkpoint to a row that says where it came from."""

import zipfile

import pytest

from orchestrator.models import Checkpoint, Job, JobState, ModelRecipe, ModelVersion
from orchestrator.recipes import ending
from orchestrator.store.bundles import bundles
from orchestrator.store.checkpoints.generations import GenerationStore


@pytest.fixture
def trained(make_job, home):
    job = make_job(state=JobState.SUCCEEDED, name="vit-s")
    folder = home.job(job.pk)
    folder.checkpoints.mkdir(parents=True)
    with zipfile.ZipFile(folder.checkpoints / "state.pt", "w") as file:
        file.writestr("step", "7")
    kept = GenerationStore(folder).capture([folder.checkpoints / "state.pt"], 1, 7, lambda: True)
    assert kept is not None
    Checkpoint.objects.create(
        job=job,
        attempt_number=1,
        step=7,
        name=kept.name,
        source="script",
        size_bytes=kept.size_bytes,
        created_at=job.submitted_at,
    )
    return job


@pytest.fixture
def reader(client, ada, home):
    client.force_login(ada)
    return client


def test_a_checkpoint_on_the_page_of_a_job_becomes_a_model_and_is_removed_again(reader, trained):
    page = reader.get(f"/jobs/{trained.pk}/files").content.decode()
    form = {"do": "POST /api/v1/models", "job": str(trained.pk), "checkpoint": "generation 1", "name": "vit"}

    made = reader.post("/change", form, follow=True)
    listed = reader.get("/models").content.decode()
    removed = reader.post("/change", {"do": "DELETE /api/v1/models/{name}", "name": "ada/vit@1"}, follow=True)

    assert "Make a model" in page
    assert made.status_code == 200
    assert "ada/vit@1" in listed
    assert f"/jobs/{trained.pk}" in listed
    assert removed.status_code == 200
    assert not ModelVersion.objects.exists()


def test_the_models_of_others_are_not_listed(reader, trained, bob, client):
    reader.post("/change", {"do": "POST /api/v1/models", "job": str(trained.pk), "name": "vit"})
    client.force_login(bob)

    assert "vit@1" not in client.get("/models").content.decode()


def test_an_empty_page_says_how_a_model_is_made(reader):
    empty = reader.get("/models").content.decode()
    none = reader.get("/models?q=x").content.decode()

    assert "berth model add NAME JOB" in empty
    assert "No model matches this name" in none


def test_a_recipe_is_run_from_the_row_of_a_model_and_its_outcome_is_told_there(
    reader, trained, make_device, home
):
    make_device(0)
    code = bundles.store_script(home.bundles, "train.py", b"def build_model(): ...\n")
    Job.objects.filter(pk=trained.pk).update(bundle=code.sha256)
    reader.post("/change", {"do": "POST /api/v1/models", "job": str(trained.pk), "name": "vit"})
    form = {"do": "POST /api/v1/models/{reference}/recipes", "reference": "ada/vit@1", "recipe": "quantize"}

    asked = reader.post("/change", form | {"model:optional": "", "done": "Submitted it."}, follow=True)
    recipe = ModelRecipe.objects.get()
    assert recipe.job is not None
    waiting = reader.get("/models").content.decode()
    Job.objects.filter(pk=recipe.job.pk).update(state=JobState.FAILED)
    ending.take_over(ModelRecipe.objects.get())
    ended = reader.get("/models").content.decode()

    assert "Submitted it." in asked.content.decode()
    assert f"/jobs/{recipe.job.pk}" in waiting
    assert "The job ended without a result; its log says why." in ended


def test_jobs_of_recipes_stand_under_recipes_and_not_among_the_readers(reader, trained, make_device, home):
    make_device(0)
    code = bundles.store_script(home.bundles, "train.py", b"def build_model(): ...\n")
    Job.objects.filter(pk=trained.pk).update(bundle=code.sha256)
    reader.post("/change", {"do": "POST /api/v1/models", "job": str(trained.pk), "name": "vit"})
    form = {"do": "POST /api/v1/models/{reference}/recipes", "reference": "ada/vit@1", "recipe": "quantize"}
    reader.post("/change", form | {"model:optional": "", "done": "Submitted it."})

    listed = reader.get("/models").content.decode()

    assert "no job of yours" in listed
    assert f"/jobs/{ModelRecipe.objects.get().job_id}" in listed
