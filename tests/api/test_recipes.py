"""Recipes: jobs that are made from a model, and what becomes of their results."""

import json
from uuid import uuid4

import pytest
from django.utils import timezone

from orchestrator.models import Checkpoint, Job, JobState, ModelRecipe, ModelVersion, Service
from orchestrator.recipes import ending
from orchestrator.recipes.creation import words_of_training
from orchestrator.store.bundles import bundles
from tests.api.test_models import trained as trained
from training.checkpoint import store

GATE = {
    "metric": "accuracy",
    "before": 0.98,
    "after": 0.97,
    "limit": 0.96,
    "higher_is_better": True,
    "passed": True,
}
MEASURED = {
    "metrics": [{"name": "accuracy", "value": 0.97, "low": 0.95, "high": 0.99}],
    "size_bytes": 1000,
    "latency_ms": 1.5,
    "memory_bytes": 4000,
}


@pytest.fixture
def client(client_of, ada):
    return client_of(ada)


@pytest.fixture
def model(client, make_device, trained, home):
    """The model digits@1 of a job whose script is train.py."""
    make_device(0)
    code = bundles.store_script(home.bundles, "train.py", b"def build_model(): ...\n")
    Job.objects.filter(pk=trained.pk).update(bundle=code.sha256)
    return client.send("POST", "/models", {"name": "digits", "job": str(trained.pk)}).json()


def ask(client, recipe: str = "quantize", **options):
    return client.send("POST", "/models/digits/recipes", {"recipe": recipe, **options})


def end(home, *, report: object = None, result: bytes | None = None, state=JobState.SUCCEEDED) -> ModelRecipe:
    """End the newest recipe's job, with the files that its program would leave."""
    recipe = ModelRecipe.objects.latest("pk")
    assert recipe.job is not None
    folder = home.job(recipe.job.pk)
    folder.output.mkdir(parents=True, exist_ok=True)
    if report is not None:
        (folder.output / "recipe.json").write_text(json.dumps(report))
    if result is not None:
        store.write(folder.checkpoints, 1, 1, {}, lambda file: file.write(result))
        Checkpoint.objects.create(
            job=recipe.job,
            attempt_number=1,
            step=1,
            name="checkpoint 1-1",
            source="library",
            size_bytes=len(result),
            created_at=timezone.now(),
        )
    Job.objects.filter(pk=recipe.job.pk).update(state=state)
    for key in ending.ended():
        ending.take_over(ModelRecipe.objects.get(pk=key))
    recipe.refresh_from_db()
    return recipe


def report_of(**fields: object) -> dict[str, object]:
    return {"before": MEASURED, "after": MEASURED, "gate": GATE, "checkpoint": "1-1", "v": 1, **fields}


def test_a_recipe_is_a_job_with_the_code_and_data_of_the_models_job(client, model, trained):
    answer = ask(client, max_loss=0.05, evaluate="metrics.py:evaluate")

    assert answer.status_code == 201, answer.content
    job = Job.objects.get(pk=answer.json()["job"])
    assert job.bundle == Job.objects.get(pk=trained.pk).bundle
    assert (job.spec.module, job.spec.launcher, job.spec.max_retries) == ("training.recipes", "direct", 0)
    assert job.spec.args == [
        "quantize",
        "--weights={dataset:digits}",
        "--model=train.py",
        "--evaluate=metrics.py:evaluate",
        "--max-loss=0.05",
    ]
    assert "ada/digits@1" in job.spec.datasets
    assert job.name == "quantize digits@1"


def test_the_code_gets_the_arguments_that_its_training_had(client, model, trained):
    job = Job.objects.get(pk=trained.pk)
    given = [
        "--width",
        "64",
        "--data",
        "{dataset:gone}",
        "--lr=1e-3",
        "opt={lr:1}",
        "--out",
        "{output_dir}",
        "--amp",
    ]
    job.spec_fields = {**job.spec_fields, "args": given}
    job.save(update_fields=["spec_fields"])

    first = Job.objects.get(pk=ask(client).json()["job"])
    service = client.send("POST", "/models/digits/service", {}).json()

    expected = {
        "--script-arguments": [*given[:3], "dataset:gone", *given[4:]],
        "--trained-with": {
            "width": 64,
            "data": "dataset:gone",
            "lr": "1e-3 opt={lr:1}",
            "out": "{output_dir}",
            "amp": True,
        },
    }
    for args in (first.spec.args, Service.objects.get(name=service["name"]).job_fields["args"]):
        told = dict(word.split("=", 1) for word in args if word.startswith(("--script-", "--trained-")))
        assert {name: json.loads(value) for name, value in told.items()} == expected


def test_arguments_that_are_too_long_for_a_recipe_are_left_out(client, model, trained):
    job = Job.objects.get(pk=trained.pk)
    job.spec_fields = {**job.spec_fields, "args": ["--classes", "\u732b" * 3_000]}
    job.save(update_fields=["spec_fields"])
    short = Job.objects.get(pk=ask(client).json()["job"])
    job.spec_fields = {**job.spec_fields, "args": ["--classes", "\u732b" * 8_190]}
    job.save(update_fields=["spec_fields"])

    answer = ask(client, recipe="export")

    assert answer.status_code == 201, answer.content
    assert any(word.startswith("--script-arguments") for word in short.spec.args)
    long = Job.objects.get(pk=answer.json()["job"])
    assert not any(word.startswith("--script-arguments") for word in long.spec.args)


def test_arguments_of_a_training_that_the_reader_may_not_see_stay_hidden(
    client_of, bob, model, trained, home
):
    Job.objects.filter(pk=trained.pk).update(visibility="private")
    job = Job.objects.get(pk=trained.pk)
    recipe = Job.objects.get(pk=trained.pk)
    recipe.pk, recipe.bundle = uuid4(), job.bundle
    recipe.visibility = "lab"
    recipe.spec_fields = {**job.spec_fields, "module": "training.recipes", "args": []}
    job.spec_fields = {**job.spec_fields, "args": ["--secret-recipe", "1"]}
    job.save(update_fields=["spec_fields"])
    recipe.save(force_insert=True)
    source = ModelVersion.objects.get(job=trained)
    ModelRecipe.objects.create(
        kind="quantize", source=source, job=recipe, created_at=timezone.now(), options={}
    )

    assert words_of_training(bob, recipe) == []
    assert "--secret-recipe" in "".join(words_of_training(job.owner, recipe))


def test_a_recipe_of_a_result_gets_the_arguments_of_the_first_training(client, model, trained, home):
    job = Job.objects.get(pk=trained.pk)
    job.spec_fields = {**job.spec_fields, "args": ["--width", "64"]}
    job.save(update_fields=["spec_fields"])
    ask(client)
    end(home, report=report_of(), result=b"int8")

    answer = client.send("POST", "/models/digits-int8/recipes", {"recipe": "export"})

    assert answer.status_code == 201, answer.content
    args = Job.objects.get(pk=answer.json()["job"]).spec.args
    assert [word for word in args if word.startswith("--script-")] == ['--script-arguments=["--width", "64"]']


def test_a_result_that_passes_its_gate_becomes_a_model_with_lineage_both_ways(client, model, home):
    ask(client)
    recipe = end(home, report=report_of(), result=b"int8")

    assert recipe.outcome == "made"
    made = ModelVersion.objects.get(dataset__name="digits-int8")
    assert made.made_by == recipe
    shown = client.send("GET", "/models/digits-int8/recipes").json()["results"]
    assert [(each["source"], each["result"]) for each in shown] == [("ada/digits@1", "ada/digits-int8@1")]
    assert shown == client.send("GET", "/models/digits/recipes").json()["results"]
    assert shown[0]["detail"] == "Made ada/digits-int8@1; accuracy is 0.97."
    assert shown[0]["report"]["after"]["metrics"][0]["low"] == 0.95


def test_a_failed_gate_keeps_the_checkpoint_and_makes_no_model(client, model, home):
    ask(client, "prune", amount=0.9)
    failed = GATE | {"after": 0.5, "passed": False}
    recipe = end(home, report=report_of(gate=failed), result=b"pruned")

    assert recipe.outcome == "gate_failed"
    assert not ModelVersion.objects.filter(dataset__name="digits-pruned").exists()
    assert recipe.job is not None
    assert recipe.job.checkpoints.count() == 1
    detail = client.send("GET", "/models/digits/recipes").json()["results"][0]["detail"]
    assert detail.startswith("The accuracy gate failed: accuracy is")
    assert "No model was made" in detail


@pytest.mark.parametrize(
    ("report", "state", "outcome"),
    [
        pytest.param(None, JobState.SUCCEEDED, "job_ended", id="no report"),
        pytest.param({"after": "much"}, JobState.SUCCEEDED, "job_ended", id="a report of other things"),
        pytest.param(report_of(), JobState.FAILED, "job_ended", id="a failed job"),
        pytest.param(report_of(), JobState.SUCCEEDED, "not_kept", id="a result that is not there"),
    ],
)
def test_a_recipe_without_a_usable_result_says_so(client, model, home, report, state, outcome):
    ask(client)

    assert end(home, report=report, state=state).outcome == outcome
    assert client.send("GET", "/models/digits/recipes").json()["results"][0]["detail"]


def test_the_reason_of_a_recipe_that_could_not_work_is_its_outcome(client, model, home):
    ask(client, "export")
    why = "ONNX does not know the operator aten._linalg_eigh; write the layer with others, or export without ONNX."
    recipe = end(home, report={"v": 1, "error": why}, state=JobState.FAILED)

    assert recipe.outcome == "job_ended"
    told = client.send("GET", "/models/digits/recipes").json()["results"][0]
    assert told["detail"] == f"The job ended without a result. {why}"


def test_an_evaluation_makes_no_model(client, model, home):
    ask(client, "evaluate", gpus=1)
    recipe = end(home, report=report_of(checkpoint=None))

    assert (recipe.outcome, recipe.result) == ("measured", None)


def test_taking_a_result_over_again_changes_nothing(client, model, home):
    ask(client)
    recipe = end(home, report=report_of(), result=b"int8")
    ending.take_over(recipe)
    recipe.refresh_from_db()

    assert recipe.outcome == "made"
    assert ModelVersion.objects.filter(dataset__name="digits-int8").count() == 1


def test_a_recipe_of_a_result_builds_the_model_in_the_same_way(client, model, home):
    ask(client, "distil", student="train.py:build_student")
    end(home, report=report_of(), result=b"student")

    answer = client.send("POST", "/models/digits-student/recipes", {"recipe": "evaluate"})

    job = Job.objects.get(pk=answer.json()["job"])
    assert "--model=train.py:build_student" in job.spec.args
    assert job.spec.datasets == ["ada/digits-student@1"]


def test_export_adds_the_packages_of_onnx_unless_it_is_left_out(client, model):
    ask(client, "export", onnx=False)

    job = ModelRecipe.objects.latest("pk").job
    assert job is not None
    assert job.spec.with_packages == []
    assert "--no-onnx" in job.spec.args


def test_two_versions_of_one_model_are_averaged(client, model, trained, home):
    store.write(home.job(trained.pk).checkpoints, 1, 9, {}, lambda file: file.write(b"later"))
    Checkpoint.objects.create(
        job=trained,
        attempt_number=1,
        step=9,
        name="checkpoint 1-9",
        source="library",
        size_bytes=5,
        created_at=timezone.now(),
    )
    later = client.send("POST", "/models", {"name": "digits", "job": str(trained.pk), "checkpoint": "9"})
    assert later.json()["reference"] == "ada/digits@2", later.content

    answer = client.send("POST", "/models/digits@1/recipes", {"recipe": "average", "others": ["digits@2"]})

    job = Job.objects.get(pk=answer.json()["job"])
    assert job.spec.datasets == ["ada/digits@1", "ada/digits@2"]
    assert {"--weights={dataset:digits@1}", "--with={dataset:digits@2}"} <= set(job.spec.args)
    twice = client.send("POST", "/models/digits@1/recipes", {"recipe": "average", "others": ["digits@1"]})
    assert twice.status_code == 422
    assert "is named twice" in twice.json()["detail"]


def test_int4_weights_by_training_with_rounded_ones_are_asked_for_and_named(client, model):
    ask(client, bits=4, qat=True, train="train.py:train_model")

    recipe = ModelRecipe.objects.latest("pk")
    assert recipe.job is not None
    assert recipe.result_name == "digits-int4"
    assert {"--bits=4", "--qat", "--train=train.py:train_model"} <= set(recipe.job.spec.args)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param({"recipe": "bake"}, "recipe", id="unknown recipe"),
        pytest.param({"recipe": "evaluate", "amount": 0.5}, "amount is for prune", id="another's option"),
        pytest.param({"recipe": "distil"}, "distil needs student", id="no student"),
        pytest.param({"recipe": "average"}, "average needs others", id="nothing to average"),
        pytest.param({"recipe": "evaluate", "name": "x"}, "makes no model", id="name without model"),
        pytest.param({"recipe": "quantize", "bits": 3}, "bits", id="three bits"),
        pytest.param({"recipe": "quantize", "qat": True}, "qat needs train", id="qat without training"),
        pytest.param({"recipe": "prune", "qat": True}, "qat is for quantize", id="qat of another recipe"),
        pytest.param({"recipe": "evaluate", "folds": 3}, "folds needs train", id="folds without training"),
        pytest.param({"recipe": "quantize", "model": "--help"}, "model", id="an option as function"),
        pytest.param({"recipe": "quantize", "name": "../x"}, "name", id="wrong name"),
        pytest.param({"recipe": "explain", "layer": "--help"}, "layer", id="an option as layer"),
        pytest.param(
            {"recipe": "prune", "layer": "fc"}, "layer is for explain", id="layer of another recipe"
        ),
    ],
)
def test_a_recipe_that_cannot_be_read_is_refused_with_its_field(client, model, body, words):
    answer = client.send("POST", "/models/digits/recipes", body)

    assert answer.status_code in {400, 422}
    assert words in answer.content.decode()
    assert not ModelRecipe.objects.exists()


def test_a_model_whose_job_is_gone_runs_no_recipe(client, model, trained):
    ModelVersion.objects.update(job=None)

    answer = ask(client)

    assert answer.status_code == 409
    assert "is gone, and with it the code that builds the model" in answer.json()["detail"]


def test_nobody_runs_or_reads_recipes_of_a_model_that_they_may_not_see(client, client_of, bob, model):
    ask(client)
    other = client_of(bob)

    assert other.send("POST", "/models/ada/digits/recipes", {"recipe": "evaluate"}).status_code == 404
    assert other.send("GET", "/models/ada/digits/recipes").status_code == 404


def test_an_option_without_a_value_stands_for_its_default(client, model):
    asked = ask(client, "quantize", model=None, evaluate=None)

    assert asked.status_code == 201, asked.json()
    job = Job.objects.get(pk=asked.json()["job"])
    assert "--model=train.py" in job.spec.args


def test_a_model_is_served_by_the_code_of_its_job_under_its_own_name(client, model, trained):
    answer = client.send("POST", "/models/digits/service", {})

    assert answer.status_code == 201, answer.json()
    service = Service.objects.get(name="digits")
    assert service.bundle == Job.objects.get(pk=trained.pk).bundle
    assert service.health_path == "/health"
    assert service.job_fields["datasets"] == ["ada/digits@1"]
    assert answer.json()["runs"] == (
        "python -m training.recipes serve --weights={dataset:digits} --model=train.py"
    )


def test_a_result_of_a_recipe_is_served_with_the_function_that_built_it(client, model, home):
    ask(client, "quantize", model="nets.py:build_small")
    end(home, report=report_of(), result=b"int8")

    client.send("POST", "/models/digits-int8/service", {})

    assert "--model=nets.py:build_small" in Service.objects.get(name="digits-int8").job_fields["args"]


def test_a_model_is_served_twice_only_under_another_name(client, model):
    assert client.send("POST", "/models/digits/service", {}).status_code == 201

    again = client.send("POST", "/models/digits/service", {})
    other = client.send("POST", "/models/digits/service", {"name": "digits-two"})

    assert again.status_code == 409
    assert "choose another name" in again.json()["detail"]
    assert other.status_code == 201


def test_a_model_whose_job_is_gone_is_not_served(client, model, trained):
    ModelVersion.objects.update(job=None)

    answer = client.send("POST", "/models/digits/service", {})

    assert answer.status_code == 409
    assert "gone" in answer.json()["detail"]


def test_nobody_serves_a_model_that_they_may_not_see(client_of, bob, model):
    assert client_of(bob).send("POST", "/models/ada/digits/service", {}).status_code == 404


def test_an_export_for_phones_asks_the_program_for_it_and_brings_what_checks_it(client, model):
    ask(client, "export", onnx=False, mobile=True)

    recipe = ModelRecipe.objects.latest("pk")
    assert recipe.job is not None
    assert {"--mobile", "--no-onnx"} <= set(recipe.job.spec.args)
    assert {"onnx", "onnxscript", "onnxruntime"} <= set(recipe.job.spec.with_packages)


@pytest.fixture
def with_values(model, trained):
    """The model's job, with values and an address that are its owner's."""
    fields = {
        **trained.spec_fields,
        "env": {"DB": "hidden"},
        "datasets": ["https://data.example.org/a.csv?key=hidden"],
    }
    Job.objects.filter(pk=trained.pk).update(spec_fields=fields)
    trained.refresh_from_db()
    return trained


def test_a_recipe_and_a_service_of_another_person_get_no_values_of_the_owner(client_of, root, with_values):
    other = client_of(root)

    recipe = other.send("POST", "/models/ada/digits/recipes", {"recipe": "evaluate"})
    service = other.send("POST", "/models/ada/digits/service", {})

    assert (recipe.status_code, service.status_code) == (201, 201), (recipe.json(), service.json())
    asked = Job.objects.get(pk=recipe.json()["job"]).spec_fields
    assert asked["datasets"] == ["ada/digits@1", "https://data.example.org/a.csv"]
    assert "hidden" not in f"{asked} {Service.objects.get(name='digits').job_fields}"


def test_a_recipe_and_a_service_of_the_owner_keep_the_values(client, with_values):
    recipe = ask(client, "evaluate")
    client.send("POST", "/models/digits/service", {})

    asked = Job.objects.get(pk=recipe.json()["job"]).spec_fields
    assert asked["env"] == {"DB": "hidden"}
    assert asked["datasets"][1:] == with_values.spec_fields["datasets"]
    assert Service.objects.get(name="digits").job_fields["env"] == {"DB": "hidden"}


def test_a_model_that_was_trained_in_an_image_runs_no_recipe_and_no_service(client, model, trained):
    fields = {**trained.spec_fields, "image": "docker.io/lab/train:1"}
    Job.objects.filter(pk=trained.pk).update(spec_fields=fields)

    recipe, service = ask(client), client.send("POST", "/models/digits/service", {})

    assert (recipe.status_code, service.status_code) == (409, 409)
    for answer in (recipe, service):
        assert answer.json()["detail"] == (
            "ada/digits@1 was trained in a container image, where recipes and services of models cannot run yet."
        )
