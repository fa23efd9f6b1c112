"""Models whose layers a placer or the partitioner put on several ranks give the results of one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.placed_runs import Branches
from tests.training.started import run_cases
from tests.training.strategy_runs import TOKENS, Gpt
from training.layers.assignment import assign, layer_sizes
from training.layers.division import trace_layers
from training.layers.tracing import NotTraceable
from training.model.layer_splits import find_layers

ON_TWO = ("branches_m-etf", "branches_stages", "gpt_m-topo", "gpt_stages_4")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(
        1, tmp_path_factory.mktemp("alone"), "branches_alone", "gpt_alone", script="placed_runs.py"
    )


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(2, tmp_path_factory.mktemp("placed"), *ON_TWO, script="placed_runs.py")


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_TWO)
def test_placed_model_trains_with_the_losses_of_one_device(case: str, alone: Path, two_ranks: Path) -> None:
    expected: dict[str, Any] = torch.load(alone / f"{case.split('_')[0]}_alone.pt")
    found: dict[str, Any] = torch.load(two_ranks / f"{case}.pt")

    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-6)
    assert found["val_losses"] == pytest.approx(expected["val_losses"], abs=1e-6)
    torch.testing.assert_close(found["full"]["model"], expected["full"]["model"], rtol=0, atol=1e-6)
    torch.testing.assert_close(found["full"]["optimizer"], expected["full"]["optimizer"], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_TWO)
def test_each_rank_holds_the_parameters_of_its_layers_alone(case: str, alone: Path, two_ranks: Path) -> None:
    (whole,) = torch.load(alone / f"{case.split('_')[0]}_alone.pt")["held"]
    held = torch.load(two_ranks / f"{case}.pt")["held"]

    assert sum(held) == whole
    assert all(0 < each < whole for each in held)


def layers_of(model: nn.Module, inputs: Tensor) -> dict[str, int]:
    return {name: number for number, name in enumerate(trace_layers(model, inputs).names)}


def test_layers_that_share_a_weight_or_change_a_tensor_in_place_stay_together() -> None:
    traced = trace_layers(Branches(), torch.zeros(4, TOKENS, dtype=torch.long))
    number = {name: place for place, name in enumerate(traced.names)}
    room = [0.75 * sum(layer_sizes(traced, 4, 2.0))] * 2

    for method in ("m-topo", "m-etf", "m-sct", "stages"):
        found = assign(traced, 4, room, method=method)
        assert found is not None
        assert found.ranks[traced.owner_of["left.0.weight"]] == found.ranks[number["left.0"]]
        (shared,) = traced.together
        assert len({found.ranks[layer] for layer in shared}) == 1
        assert found.fits(room)


def test_assignment_is_refused_where_memory_is_short() -> None:
    traced = trace_layers(Gpt(), torch.zeros(4, TOKENS, dtype=torch.long))

    assert assign(traced, 4, [0.3 * sum(layer_sizes(traced, 4, 2.0))] * 2) is None


def test_tracing_changes_neither_model_nor_generators() -> None:
    model, inputs = Branches().eval(), torch.zeros(4, TOKENS, dtype=torch.long)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.random.get_rng_state()

    trace_layers(model, inputs)

    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), generator)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


class Looks(nn.Module):
    """Decides by values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.first(inputs)
        output: Tensor = self.second(hidden) if hidden.sum() > 0 else hidden
        return output


class Counts(nn.Module):
    """Asks for shapes, and keeps the rest of its code in modules."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = [self.head(inputs[:, place]) for place in range(inputs.shape[1])]
        output: Tensor = self.tail(torch.stack(rows, dim=1) if len(rows) > 1 else rows[0])
        return output


def test_model_that_decides_by_values_is_refused_with_the_reason() -> None:
    with pytest.raises(
        NotTraceable, match="Looks cannot be divided into layers: TraceError: the code depends on"
    ):
        trace_layers(Looks(), torch.zeros(2, 4))


def test_questions_about_shapes_are_answered_without_data() -> None:
    assert set(layers_of(Counts(), torch.zeros(2, 3, 4))) == {"head", "stack", "tail"}


def test_pair_of_layers_that_a_stage_cuts_apart_is_split_on_neither_side() -> None:
    layers = find_layers(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), 2)

    assert layers.held(lambda name: name.startswith("0.")) == {}
    assert layers.held(lambda name: name.startswith("2.")) == {}
    assert layers.held(lambda name: True) == {"0": "columns", "2": "rows"}
