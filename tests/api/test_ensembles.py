"""The best trials of a sweep put together by a follow-up job."""

import zipfile

import pytest

from orchestrator.models import Checkpoint, Job, ModelRecipe, ModelVersion, RungReport, Sweep, SweepTrial
from orchestrator.store.bundles import bundles
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.sweeps import controller
from tests.api.test_sweeps import BODY

SCALED = {**BODY, "set": ["batch=32,64", "lr=1e-3..1e-2*batch/32"]}


@pytest.fixture
def sweep(client_of, ada, make_device, home) -> Sweep:
    """A sweep with three trials, of which the worst has no checkpoint."""
    make_device(0)
    answer = client_of(ada).send("POST", "/sweeps", SCALED)
    sweep = Sweep.objects.get(pk=answer.json()["id"])
    code = bundles.store_script(home.bundles, "train.py", b"def build_model(batch): ...\n")
    for number in range(3):
        controller.advance(sweep.pk)
        trial = sweep.trials.get(number=number)
        Job.objects.filter(pk=trial.job_id).update(bundle=code.sha256, state="running")
        RungReport.objects.create(trial=trial, rung=1, value=0.5 - number / 10)
        if number:
            keep_checkpoint(home, trial.job, number)
    return sweep


def keep_checkpoint(home, job: Job, content: int) -> None:
    folder = home.job(job.pk)
    folder.checkpoints.mkdir(parents=True)
    path = folder.checkpoints / "state.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("step", str(content))
    captured = GenerationStore(folder).capture([path], 1, 1, lambda: True)
    assert captured is not None
    Checkpoint.objects.create(
        job=job,
        attempt_number=1,
        step=1,
        name=captured.name,
        source="script",
        size_bytes=captured.size_bytes,
        created_at=job.submitted_at,
    )


def test_best_trials_become_models_and_a_job_asks_them_together(client_of, ada, sweep):
    answer = client_of(ada).send(
        "POST", f"/sweeps/{sweep.pk}/ensemble", {"best": 3, "model": "train.py:build_model"}
    )

    assert answer.status_code == 201, answer.content
    recipe = ModelRecipe.objects.get()
    names = [f"train-sweep-{sweep.short_id}-{number}" for number in (2, 1)]
    assert recipe.job is not None
    args = recipe.job.spec_fields["args"]
    assert answer.json()["recipe"] == "ensemble"
    assert set(ModelVersion.objects.values_list("dataset__name", flat=True)) == set(names)
    assert args[:2] == ["ensemble", f"--weights={{dataset:{names[0]}}}"]
    assert args[-1] == f"--with={{dataset:{names[1]}}}"
    best = SweepTrial.objects.get(sweep=sweep, number=2)
    given = [word for word in args if word.startswith("--settings=")]
    assert len(given) == 2
    assert f'"batch": {best.settings["batch"]}' in given[0]


def test_weights_are_averaged_into_a_model_of_its_own(client_of, ada, sweep):
    answer = client_of(ada).send("POST", f"/sweeps/{sweep.pk}/ensemble", {"by": "weights"})

    assert answer.json()["recipe"] == "average"
    assert ModelRecipe.objects.get().result_name == f"train-sweep-{sweep.short_id}-average"


def test_ensemble_of_trials_without_checkpoints_says_what_is_missing(client_of, ada, sweep):
    Checkpoint.objects.filter(job__trial__number=2).delete()

    answer = client_of(ada).send("POST", f"/sweeps/{sweep.pk}/ensemble", {})

    assert answer.status_code == 409
    assert "needs two trials with a value and a checkpoint" in answer.json()["detail"]
    assert not ModelVersion.objects.exists()


@pytest.mark.parametrize("body", [{"best": 1}, {"by": "votes"}, {"model": "no function"}, {"size": 3}])
def test_ensemble_that_cannot_be_is_refused(client_of, ada, sweep, body):
    assert client_of(ada).send("POST", f"/sweeps/{sweep.pk}/ensemble", body).status_code == 400


def test_other_people_make_no_ensemble_of_a_sweep(client_of, bob, sweep):
    assert client_of(bob).send("POST", f"/sweeps/{sweep.pk}/ensemble", {}).status_code == 404
