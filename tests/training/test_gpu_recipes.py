"""Each recipe on a small ConvNet whose model is on the GPU; ``make gpu PARTS=recipes`` runs it, a dry run on the CPU."""

import os
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import DRY_RUN_VARIABLE
from tests.training.recipe_models import train_owner, write_owner
from training.recipes.__main__ import RECIPES, run
from training.recipes.gate import Report

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
DRY_RUN = DRY_RUN_VARIABLE in os.environ  # read here, because each test runs without Berth's variables
EVALUATES = """

def evaluate(model, data):
    right = count = 0
    for inputs, targets in data:
        right += int((model(*inputs).argmax(1) == targets).sum())
        count += len(targets)
    return {"accuracy": right / count}
"""


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an owner, beside the weights that it trained."""
    if not torch.cuda.is_available() and not DRY_RUN:
        pytest.skip("there is no NVIDIA GPU")
    code = write_owner("convnet", tmp_path_factory.mktemp("owner"))
    code.write_text(code.read_text() + EVALUATES)
    train_owner(code, code.with_name("model.pt"))
    return code


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_works_where_the_model_is(
    name: str, owner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With functions of the owner wherever the recipe calls one: they fail with tensors of two devices."""
    monkeypatch.setenv("BERTH_OUTPUT_DIR", str(tmp_path / "output"))
    monkeypatch.setenv("BERTH_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    weights = owner.with_name("model.pt")
    options = {
        "evaluate": ["--folds", "2", "--train", f"{owner}:train_model"],
        "quantize": ["--qat", "--train", f"{owner}:train_model"],
        "prune": ["--train", f"{owner}:train_model"],
        "distil": ["--student", f"{owner}:build_student", "--epochs", "1"],
        "average": ["--with", str(weights)],
        "ensemble": ["--with", str(weights)],
        "export": ["--no-onnx"],
    }.get(name, [])
    report: Report = run(
        [name, "--weights", str(weights), "--model", str(owner), "--evaluate", f"{owner}:evaluate", *options]
    )

    measured = report["after"] or report["before"]
    assert measured is not None
    assert 0 <= measured["metrics"][0]["value"] <= 1
