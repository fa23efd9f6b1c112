"""Recipes on a GPU: what the owner's functions get is where their model is. The meta device stands for the GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from tests.training.recipe_models import train_owner, write_owner
from training.data import move_to
from training.recipes import changing, folds, named
from training.recipes.__main__ import RECIPES, Recipe, parse
from training.recipes.named import Samples

HOST, OTHER = torch.device("cpu"), torch.device("meta")
NOTICES = """

def devices_of(model, data):
    found = {next(model.parameters()).device.type}
    for inputs, targets in data:
        model(*inputs)  # fails with tensors of two devices
        found |= {each.device.type for each in (*inputs, targets)}
    return found

def evaluate(model, data):
    assert devices_of(model, data) == {"meta"}
    return {"score": 0.5}
"""


@dataclass(frozen=True)
class Graph:
    nodes: Tensor
    name: str


class Pair(NamedTuple):
    left: Tensor
    right: list[Tensor]


def rows() -> Tensor:
    return torch.ones(4, 6)


def test_batch_of_any_make_is_moved_whole() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    batch = {"pair": Pair(rows(), [rows()]), "graph": Graph(rows(), "one"), "packed": packed, "ids": ("a", 1)}

    moved = move_to(batch, OTHER)

    pair, graph, sequence = moved["pair"], moved["graph"], moved["packed"]
    assert isinstance(pair, Pair)
    assert isinstance(graph, Graph)
    assert isinstance(sequence, PackedSequence)
    found = [pair.left, *pair.right, graph.nodes, sequence.data]
    assert {each.device for each in found} == {OTHER}
    assert (graph.name, moved["ids"]) == ("one", ("a", 1))
    assert sequence.batch_sizes.device == HOST  # as torch wants it
    assert batch["graph"].nodes.device == HOST  # type: ignore[attr-defined]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe whose model is on another device than the data that its owner's function returns."""
    code = write_owner("convnet", tmp_path)
    code.write_text(code.read_text() + NOTICES)
    train_owner(code, tmp_path / "model.pt")
    monkeypatch.setattr(named, "choose_device", lambda: OTHER)
    words = [
        "evaluate",
        "--weights",
        tmp_path / "model.pt",
        "--model",
        code,
        "--evaluate",
        f"{code}:evaluate",
    ]
    return Recipe(parse([*map(str, words)]))


def test_evaluation_function_gets_batches_where_the_model_is(recipe: Recipe) -> None:
    report = RECIPES["evaluate"](recipe)

    assert report["after"] is not None
    assert report["after"]["metrics"][0]["value"] == 0.5


def test_data_to_learn_from_is_where_the_model_is(recipe: Recipe) -> None:
    assert {each.device for inputs, targets in recipe.learned_from() for each in (*inputs, targets)} == {
        OTHER
    }


class Enough(Exception):
    """A fold was trained."""


def test_folds_are_trained_where_the_model_is() -> None:
    data = Samples(lambda: iter([((rows(),), torch.zeros(4))])).on(OTHER)

    def train(model: nn.Module, part: Any) -> None:
        assert {each.device for inputs, targets in part for each in (*inputs, targets)} == {OTHER}
        raise Enough

    with pytest.raises(Enough):
        folds.cross_validate(lambda: nn.Linear(6, 1).to(OTHER), train, data, 2)


def test_teacher_keeps_its_weights_when_the_loss_is_planned_for_another_device() -> None:
    """The planner calls the loss with tensors without data; a teacher that followed them would lose its weights."""
    teacher = nn.Linear(6, 3)
    before = teacher.weight.detach().clone()
    loss = changing.loss_of_lessons(teacher)

    with FakeTensorMode(allow_non_fake_inputs=True):
        wanted = torch.empty(4, 6, device="cuda"), torch.zeros(4, dtype=torch.long, device="cuda")
        found = loss(torch.empty(4, 3, device="cuda"), wanted)

    assert found.device.type == "cuda"
    assert not isinstance(teacher.weight.data, FakeTensor)
    assert torch.equal(teacher.weight, before)


def test_student_learns_from_samples_that_are_on_the_host_again() -> None:
    """The trainer moves batches itself, and can pin only memory of the host."""
    pairs = changing._Pairs(Samples(lambda: iter([((rows(),), torch.zeros(4))])).on(OTHER))

    assert {pairs.inputs.device, pairs.targets.device} == {HOST}
