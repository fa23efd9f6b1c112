"""The page of models: from a job's checkpoint to a row that says where it came from."""

import json
import re
import shutil
import zipfile
from typing import get_args

import pytest

from benchmarks.played_sweeps import play
from dashboard.parts import recipe_forms
from orchestrator.models import Checkpoint, Job, JobState, ModelRecipe, ModelVersion, SweepTrial
from orchestrator.recipes import ending
from orchestrator.recipes.asking import RecipeName
from orchestrator.store.bundles import bundles
from orchestrator.store.checkpoints.generations import GenerationStore
from tests.dashboard.markup import html_of
from training.media import Media


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


@pytest.fixture
def model(reader, trained, make_device, home) -> ModelVersion:
    """The model ada/vit@1 of a job whose script is train.py."""
    make_device(0)
    code = bundles.store_script(home.bundles, "train.py", b"def build_model(): ...\n")
    Job.objects.filter(pk=trained.pk).update(bundle=code.sha256)
    reader.post("/change", {"do": "POST /api/v1/models", "job": str(trained.pk), "name": "vit"})
    return ModelVersion.objects.get()


def page_of(reader, reference: str = "ada/vit@1") -> str:
    return html_of(reader.get(f"/models/{reference}"))


def test_the_page_of_a_model_shows_its_versions_lineage_and_commands(reader, model, trained):
    page = page_of(reader, "vit")

    for words in (
        "berth pull model:vit@1",
        "berth run --data vit@1",
        f"/jobs/{trained.pk}",
        "generation 1",
        "/api/v1/models/ada/vit%401/download",
        "No recipe has run",
        "Make the next version",
    ):
        assert words in page


def test_nobody_else_sees_the_page_of_a_model(reader, model, bob, client):
    client.force_login(bob)

    assert client.get("/models/ada/vit").status_code == 404
    assert client.get("/models/nothing@3").status_code == 404


def test_each_recipe_has_a_form_that_runs_it(reader, model):
    page = page_of(reader)
    forms = re.findall(r'name="recipe" value="(\w+)"', page)

    assert forms == [form.kind for form in recipe_forms.FORMS]
    assert set(forms) == set(get_args(RecipeName))


@pytest.mark.parametrize("shown", recipe_forms.shown_forms(), ids=lambda shown: shown.form.kind)
def test_a_form_as_it_opens_is_read_as_its_recipe(reader, model, shown):
    """Of distil, average and ensemble with the field that they need."""
    needed = {"student": "train.py:build_student", "others:words": "ada/vit@1"}
    form = {"do": "POST /api/v1/models/{reference}/recipes", "reference": "ada/vit@1"}
    for each in (*shown.own, *shown.functions):
        if each.control == "check":
            form |= {each.name: "on"} if each.value else {}
        else:
            form[each.name] = needed.get(each.name, each.choices[0][0] if each.choices else "")

    answer = reader.post("/change", {**form, "recipe": shown.form.kind, "gpus:number": ""}, follow=True)

    text = html_of(answer)
    if "others:words" in form:
        assert "is named twice" in text
    else:
        assert ModelRecipe.objects.get().kind == shown.form.kind, text


def test_a_box_that_is_on_by_default_can_be_unticked(reader, model):
    """A browser sends nothing of an unticked box, and REST then takes its default."""
    page = page_of(reader)
    sent = re.findall(r'<input type="hidden" name="(onnx:switch)" value="(\w+)">', page)
    form = {"do": "POST /api/v1/models/{reference}/recipes", "reference": "ada/vit@1", "recipe": "export"}

    reader.post("/change", form | dict(sent))
    without = ModelRecipe.objects.latest("pk").options
    reader.post("/change", form | {name: [value, "on"] for name, value in sent})
    ticked = ModelRecipe.objects.latest("pk").options

    assert (without["onnx"], ticked["onnx"]) == (False, True)


def test_a_recipe_that_is_refused_comes_back_as_it_was_typed(reader, model):
    form = {
        "recipe": "prune",
        "amount:number": "1.5",
        "structured:switch": "on",
        "name:optional": "small",
        "model:optional": "train.py:build_model",
        "with_packages:words": "scipy, torchmetrics",
        "gpus:number": "1",
    }

    refused = reader.post("/new-recipe/ada/vit@1", form)
    page = html_of(refused)
    prune = page[page.index("<summary>Prune") - 60 : page.index("<summary>Distil") - 60]
    run = reader.post("/new-recipe/ada/vit@1", form | {"amount:number": "0.5"})

    assert refused.status_code == 400
    assert '<details class="recipe" name="recipe" open>' in prune
    assert page.count('name="recipe" open>') == 1
    assert re.search(r'<p class="error" role="alert">[^<]*amount', prune)
    for words in ('value="1.5"', 'value="small"', 'value="train.py:build_model"', "scipy, torchmetrics"):
        assert words in prune
    assert '<option value="1" selected>' in prune
    assert re.search(r'name="structured:switch" value="on" checked', prune)
    assert (run.status_code, run.headers["Location"]) == (302, "/models/ada/vit@1")
    assert "Submitted the job." in page_of(reader)


def test_a_service_that_is_refused_comes_back_as_it_was_typed(reader, model):
    form = {
        "name:optional": "No Name",
        "gpu_memory_gib:number": "4",
        "model:optional": "train.py:other",
        "gpus:number": "1",
    }

    refused = reader.post("/new-model-service/ada/vit@1", form)
    page = html_of(refused)
    serve = page[page.index("<summary>Serve") - 60 : page.index("<summary>Evaluate")]
    begun = reader.post("/new-model-service/ada/vit@1", form | {"name:optional": "vit-two"})

    assert refused.status_code == 400
    assert 'name="recipe" open>' in serve
    assert 'role="alert"' in serve
    for words in ('value="No Name"', 'value="4"', 'value="train.py:other"', '<option value="1" selected>'):
        assert words in serve
    assert begun.headers["Location"] == "/services/vit-two"


def test_nobody_runs_a_recipe_or_a_service_of_anothers_model_by_its_form(reader, model, bob, client):
    client.force_login(bob)

    for address in ("/new-recipe/ada/vit@1", "/new-model-service/ada/vit@1"):
        assert client.post(address, {"recipe": "prune"}).status_code == 404
    assert not ModelRecipe.objects.exists()


def test_a_report_shows_before_after_and_the_gate_that_failed(reader, model, home):
    reader.post(
        "/change",
        {
            "do": "POST /api/v1/models/{reference}/recipes",
            "reference": "ada/vit@1",
            "recipe": "prune",
            "amount:number": "0.9",
        },
    )
    recipe = ModelRecipe.objects.get()
    assert recipe.job is not None
    working = page_of(reader)
    figures = {"size_bytes": 4_000_000, "latency_ms": 1.5, "memory_bytes": 4_000_000}
    report = {
        "before": {"metrics": [{"name": "accuracy", "value": 0.98, "low": 0.96, "high": 0.99}], **figures},
        "after": {"metrics": [{"name": "accuracy", "value": 0.61}], **figures},
        "gate": {
            "metric": "accuracy",
            "before": 0.98,
            "after": 0.61,
            "limit": 0.96,
            "higher_is_better": True,
            "passed": False,
        },
        "facts": {"zeros": 0.9, "trained": "yes"},
        "left_out": ["head.weight"],
    }
    output = home.job(recipe.job.pk).output
    output.mkdir(parents=True)
    (output / "recipe.json").write_text(json.dumps(report))
    Job.objects.filter(pk=recipe.job.pk).update(state=JobState.SUCCEEDED)
    ending.take_over(ModelRecipe.objects.get())

    page = page_of(reader)

    assert "data-fresh" in working
    assert "amount 0.9" in working
    for words in (
        "gate failed",
        "0.98 (0.96 to 0.99)",
        "0.61",
        "gate failed: at least 0.96",
        "head.weight",
        "zeros",
    ):
        assert words in page
    assert "data-fresh" not in page


def test_a_model_is_served_by_a_click_that_leads_to_the_service(reader, model):
    form = {
        "do": "POST /api/v1/models/{reference}/service",
        "reference": "ada/vit@1",
        "name:optional": "vit-two",
    }

    answer = reader.post("/change", form | {"then": "/services/{name}", "gpus:number": ""})

    assert answer.headers["Location"] == "/services/vit-two"
    assert "/services/vit-two" in page_of(reader)


def test_another_host_is_never_where_a_form_leads(reader, model):
    form = {"do": "POST /api/v1/models/{reference}/service", "reference": "ada/vit@1", "name:optional": "vit"}

    answer = reader.post("/change", form | {"then": "//evil.example/{name}"})

    assert answer.headers["Location"] == "/pools"


def test_the_next_version_is_made_of_another_checkpoint_on_the_page(reader, model, trained, home):
    folder = home.job(trained.pk)
    with zipfile.ZipFile(folder.checkpoints / "state.pt", "w") as file:
        file.writestr("step", "8")
    kept = GenerationStore(folder).capture([folder.checkpoints / "state.pt"], 1, 8, lambda: True)
    assert kept is not None
    Checkpoint.objects.create(
        job=trained,
        attempt_number=1,
        step=8,
        name=kept.name,
        source="script",
        size_bytes=kept.size_bytes,
        created_at=trained.submitted_at,
    )
    form = {"do": "POST /api/v1/models", "name": "vit", "job": str(trained.pk), "checkpoint:optional": "8"}

    answer = reader.post("/change", form | {"then": "/models/{reference}"}, follow=True)

    assert answer.redirect_chain[0][0] == "/models/ada/vit%402"
    page = html_of(answer)
    assert "/models/ada/vit@1" in page
    assert "not the newest" in page_of(reader, "ada/vit@1")


def test_a_version_whose_files_are_gone_or_cut_says_so(reader, model, home):
    path = home.pushed / model.dataset.path
    path.chmod(0o644)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    flipped = page_of(reader)
    path.write_bytes(b"cut")
    cut = page_of(reader)
    path.unlink()
    gone = page_of(reader)

    assert "The files of this version are damaged" in flipped
    assert "The files of this version are damaged" in cut
    assert "cannot be read" in gone
    assert "/download" not in gone


def test_a_model_outlives_the_checkpoint_and_the_job_that_it_came_from(reader, model, trained, home):
    shutil.rmtree(home.job(trained.pk).root)
    without_files = page_of(reader)
    ModelVersion.objects.update(job=None)
    without_job = page_of(reader)

    assert "The job no longer keeps this checkpoint" in without_files
    assert "a job that is gone" in without_job
    assert "No recipe can run" in without_job


def test_what_an_explanation_drew_is_on_the_page_of_the_model(reader, model, make_attempt, home):
    attempt = make_attempt(state=JobState.SUCCEEDED)
    media = Media(home.job(attempt.job.pk).attempt(1).media)
    media.take("image", {"saliency, sample 0": [[0, 1], [1, 0]]}, 1, 1000.0)
    media.take("table", [{"unit": 3, "conductance": 0.25}], 1, 1000.0)
    media.write()
    before = page_of(reader)
    ModelRecipe.objects.create(
        kind="explain",
        source=model,
        source_reference="ada/vit@1",
        job=attempt.job,
        outcome="measured",
        created_at=attempt.job.submitted_at,
        ended_at=attempt.job.submitted_at,
    )

    page = page_of(reader)

    assert "Explained" not in before
    assert "saliency, sample 0" in page
    assert f"/api/v1/jobs/{attempt.job.pk}/media/" in page
    assert "conductance" in page


def test_a_model_names_the_trial_and_the_sweep_that_it_came_from(reader, ada, model, trained):
    sweep = play(ada, 1)
    SweepTrial.objects.all().delete()
    SweepTrial.objects.create(
        sweep=sweep, number=3, settings={}, job=trained, state="ended", created_at=trained.submitted_at
    )

    assert "trial 3 of the sweep" in " ".join(page_of(reader).split())
