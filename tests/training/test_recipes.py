"""Recipes measure, shrink, export and explain models of other people's code, and their gate holds."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.recipe_models import SOURCES, train_owner, write_owner
from training.checkpoint import store
from training.recipes import changing, explain, export, layers, low_bits, measure, mobile, named, weights
from training.recipes.__main__ import main, run
from training.recipes.gate import REPORT, Report
from training.recipes.named import RecipeError


@pytest.fixture(scope="module", params=sorted(SOURCES))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an owner with their code and a trained model."""
    folder = tmp_path_factory.mktemp(request.param)
    train_owner(
        write_owner(request.param, folder).rename(folder / f"{request.param}_code.py"), folder / "model.pt"
    )
    return folder


@pytest.fixture(autouse=True)
def own_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe gives the owner's file a command line, as it may in a process of its own."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))


@dataclass(frozen=True)
class Recipes:
    """Runs recipes on an owner's model, as a job does."""

    folder: Path

    @property
    def code(self) -> Path:
        return next(self.folder.glob("*_code.py"))

    def __call__(self, name: str, *options: object, place: Path | None = None) -> Report:
        words = ("--weights", place or self.folder / "model.pt", "--model", self.code, *options)
        return run([name, *map(str, words)])


@pytest.fixture
def recipe(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipes:
    monkeypatch.setenv("BERTH_OUTPUT_DIR", str(tmp_path / "output"))
    monkeypatch.setenv("BERTH_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    return Recipes(trained)


def value(report: Report, side: str = "after") -> float:
    measured = report[side]  # type: ignore[literal-required]
    return float(measured["metrics"][0]["value"])


def test_evaluation_tells_metrics_with_intervals_and_keeps_its_report(
    recipe: Recipes, tmp_path: Path
) -> None:
    report = recipe("evaluate")

    assert report["after"] is not None
    first = report["after"]["metrics"][0]
    assert first["low"] is not None
    assert first["high"] is not None
    assert first["low"] <= first["value"] <= first["high"]
    assert report["after"]["size_bytes"] > 0
    assert report["after"]["latency_ms"] > 0
    assert json.loads((tmp_path / "output" / REPORT).read_text()) == report


def test_int8_weights_are_smaller_pass_the_gate_and_load_again(recipe: Recipes, tmp_path: Path) -> None:
    report = recipe("quantize", "--max-loss", 0.05)
    place = tmp_path / "checkpoints" / str(report["checkpoint"])
    again = recipe("evaluate", place=place)

    assert report["gate"] is not None
    assert report["gate"]["passed"]
    assert float(report["facts"]["smaller"]) >= 1.5
    assert value(again) == pytest.approx(value(report))


def test_int4_weights_are_smaller_than_int8_ones_and_load_again(recipe: Recipes, tmp_path: Path) -> None:
    eight = recipe("quantize", "--max-loss", 1)
    four = recipe("quantize", "--bits", 4, "--max-loss", 1)
    again = recipe("evaluate", place=tmp_path / "checkpoints" / str(four["checkpoint"]))

    assert four["gate"] is not None
    assert eight["after"] is not None
    assert four["after"] is not None
    assert four["after"]["size_bytes"] < eight["after"]["size_bytes"]
    assert "int4 weights" in four["facts"]
    assert value(again) == pytest.approx(value(four))


def test_training_with_rounded_weights_has_gate_and_report_and_loads_again(
    recipe: Recipes, tmp_path: Path
) -> None:
    words = ("--bits", 4, "--qat", "--train", f"{recipe.code}:train_model", "--max-loss", 0.5)
    report = recipe("quantize", *words)

    assert report["gate"] is not None
    assert report["gate"]["passed"], report["gate"]
    assert report["facts"]["trained with rounded weights"] == "yes"
    again = recipe("evaluate", place=tmp_path / "checkpoints" / str(report["checkpoint"]))
    assert value(again) == pytest.approx(value(report))
    with pytest.raises(RecipeError, match="needs the function that trains"):
        recipe("quantize", "--qat")


def test_training_with_rounded_weights_wins_back_a_part_of_what_int4_loses() -> None:
    torch.manual_seed(0)
    rows = torch.randn(512, 16)
    targets = torch.sin(2 * rows[:, :1]) + rows[:, 1:2] * rows[:, 2:3]
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    data = named.Samples(lambda: iter([((rows,), targets)]))

    def fit(model: nn.Module, _: object) -> None:
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _step in range(400):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(model(rows), targets))
            optimizer.step()

    def loss_of(model: nn.Module) -> float:
        return float(nn.functional.mse_loss(model.eval()(rows), targets).detach())

    fit(model, data)
    alone = loss_of(changing.quantize(model, 4).model)
    trained = loss_of(changing.quantize(model, 4, train=fit, data=data).model)

    assert loss_of(model) < trained < 0.9 * alone


@pytest.mark.parametrize("shape", [(3, 5), (4, 3, 3, 3), (2, 64), (7, 33)])
def test_int4_weights_are_within_half_a_level_of_the_weights(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    kept = low_bits.Int4(weight.shape)
    packed, scale = kept.right_inverse(weight)

    assert packed.dtype == torch.uint8
    assert kept(packed, scale).shape == weight.shape
    assert (kept(packed, scale) - weight).abs().max() <= scale.max() / 2 + 1e-6


def test_rounded_weights_have_the_gradient_of_the_weights() -> None:
    weight = torch.randn(4, 40, requires_grad=True)
    rounded = low_bits.Rounded(weight.shape, 4)(weight)
    (gradient,) = torch.autograd.grad(rounded.sum(), weight)

    assert torch.equal(gradient, torch.ones_like(weight))
    assert len(rounded[0, :32].unique()) <= 15


def test_pruning_zeroes_a_share_and_fine_tuning_keeps_it(recipe: Recipes, tmp_path: Path) -> None:
    report = recipe("prune", "--amount", 0.3, "--train", f"{recipe.code}:train_model", "--max-loss", 0.5)

    assert float(report["facts"]["zeros_percent"]) == pytest.approx(30, abs=1)
    assert (
        store.verify(tmp_path / "checkpoints" / str(report["checkpoint"]))["files"][0]["path"] == "state.pt"
    )


def test_a_failed_gate_keeps_the_result_and_says_so(recipe: Recipes, tmp_path: Path) -> None:
    report = recipe("prune", "--amount", 0.97, "--max-loss", 0.001)

    assert report["gate"] is not None
    assert not report["gate"]["passed"]
    assert (tmp_path / "checkpoints" / str(report["checkpoint"]) / "state.pt").is_file()


def test_a_student_learns_from_its_teacher(recipe: Recipes) -> None:
    report = recipe(
        "distil", "--student", f"{recipe.code}:build_student", "--epochs", 6, "--learning-rate", 0.01
    )

    assert float(report["facts"]["smaller"]) > 1
    assert value(report) == pytest.approx(value(report, "before"), abs=3.0)


def test_an_export_answers_as_the_model_does(recipe: Recipes, tmp_path: Path) -> None:
    report = recipe("export", "--no-onnx")
    path = tmp_path / "checkpoints" / str(report["checkpoint"]) / export.PROGRAM

    assert float(report["facts"]["export_difference"]) <= export.TOLERANCE
    assert torch.export.load(path) is not None


def test_explanations_add_up_to_the_answer(recipe: Recipes) -> None:
    report = recipe("explain", "--samples", 3)

    assert float(report["facts"]["pictures and tables"]) >= 3
    assert float(report["facts"]["completeness_error"]) < 0.5


def test_conductance_of_the_layer_before_the_head_adds_up_and_is_shown(
    recipe: Recipes, trained: Path
) -> None:
    report = recipe("explain", "--samples", 3)

    name = trained.name.rstrip("0123456789")
    layer, shown_each = {
        "convnet": ("0", 3),
        "transformer": ("body.layers.0.linear2", 2),
        "tabular": ("2", 2),
    }[name]
    assert report["facts"]["layer"] == layer
    if name != "transformer":  # its residual path goes around the layer
        assert float(report["facts"]["share of the answers through it"]) == pytest.approx(1, abs=0.05)
    assert report["facts"]["pictures and tables"] == 3 * shown_each


def test_conductance_of_a_linear_path_is_the_share_of_each_unit() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    rows = torch.randn(5, 3)

    found = layers.conductance(model, "0", lambda values: model(values)[:, 0], rows, 4)

    wanted = (model[0](rows) - model[0](torch.zeros(1, 3))) * model[1].weight
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape", "unit", "count"),
    [
        pytest.param(nn.Conv1d(2, 3, 3), (2, 8), "channel", 3, id="convolution"),
        pytest.param(nn.Linear(8, 6), (2, 8), "position", 2, id="sequence"),
        pytest.param(nn.Linear(8, 6), (8,), "unit", 6, id="row"),
    ],
)
def test_conductance_is_shown_by_channel_position_or_unit(
    layer: nn.Module, shape: tuple[int, ...], unit: str, count: int
) -> None:
    model = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(2))
    inputs = torch.randn(4, *shape)

    found = explain.explain(model, ((inputs,), torch.zeros(4)), "0")
    assert found.conductance is not None
    rows = explain.rows_of_units(found.conductance[0], has_channels=found.has_channels)

    sums = found.conductance[0].reshape(count, -1).sum(1)
    assert sorted(each[unit] for each in rows) == list(range(count))
    assert all(each["conductance"] == pytest.approx(float(sums[int(each[unit])]), abs=1e-5) for each in rows)


def test_a_layer_is_named_and_one_that_there_is_not_is_refused_with_those_there_are(recipe: Recipes) -> None:
    other = {"0": "0", "2": "0", "body.layers.0.linear2": "body.layers.0.linear1"}
    usual = str(recipe("explain", "--samples", 2)["facts"]["layer"])

    report = recipe("explain", "--samples", 2, "--layer", other[usual])

    assert report["facts"]["layer"] == other[usual]
    with pytest.raises(RecipeError, match=f"no layer 'nothing'; among its layers are .*{other[usual]}"):
        recipe("explain", "--layer", "nothing")


def test_data_is_found_beside_the_weights_of_several_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in (("DIGITS", "/data"), ("NET_1", "/one"), ("NET_2", "/two")):
        monkeypatch.setenv(f"{named.DATASET_PREFIX}{name}", path)

    assert named.path_of_data(Path("/one"), Path("/two")) == "/data"
    assert named.path_of_data(Path("/one")) is None


def test_an_average_of_the_same_model_is_that_model(recipe: Recipes, trained: Path) -> None:
    report = recipe("average", "--with", trained / "model.pt")

    assert value(report) == pytest.approx(value(report, "before"), abs=1e-5)


def test_ensemble_answers_as_the_mean_of_its_members_and_keeps_the_answers(
    recipe: Recipes, trained: Path, tmp_path: Path
) -> None:
    report = recipe("ensemble", "--with", trained / "model.pt")

    assert value(report) == pytest.approx(value(report, "before"), abs=1e-5)
    assert report["gate"] is None
    assert len(torch.load(tmp_path / "output" / "answers.pt")) == 96


def test_members_of_an_ensemble_are_built_with_their_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_OUTPUT_DIR", str(tmp_path / "output"))
    code = write_owner("tabular", tmp_path)
    for width in (16, 64):
        model = named.build_model(f"{code}:build_model", {"width": width, "lr": 0.1})
        torch.save(model.state_dict(), tmp_path / f"{width}.pt")
    words = ["ensemble", "--weights", tmp_path / "16.pt", "--with", tmp_path / "64.pt", "--model", code]

    report = run([*map(str, words), '--settings={"width": 16}', '--settings={"width": 64, "lr": 3}'])

    assert report["facts"]["models"] == 2
    with pytest.raises(RecipeError, match="do not fit the model"):
        run(list(map(str, words)))
    with pytest.raises(RecipeError, match="no JSON object"):
        run([*map(str, words), "--settings=16"])


ARGUMENTS_AT_IMPORT = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--depth", type=int, default=1)
options = parser.parse_args()
def build_model(depth=1, sizes=(2, 3)):
    assert sizes == (2, 3)
    return torch.nn.Sequential(*(torch.nn.Linear(options.width, options.width) for _ in range(depth)))
def evaluation_data():
    return torch.randn(4, options.width), torch.randn(4, options.width)
"""


def test_code_that_reads_arguments_when_it_is_imported_finds_those_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_OUTPUT_DIR", str(tmp_path / "output"))
    code = tmp_path / "reads_arguments.py"
    code.write_text(ARGUMENTS_AT_IMPORT)
    torch.save(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)).state_dict(), tmp_path / "model.pt")

    report = run(
        [
            *("evaluate", "--weights", str(tmp_path / "model.pt"), "--model", str(code)),
            '--script-arguments=["--width", "5", "--depth=2"]',
            '--trained-with={"width": 5, "depth": 2, "sizes": "7,9"}',
        ]
    )

    assert value(report) >= 0


def test_code_that_ends_when_it_is_imported_is_told_what_to_move(tmp_path: Path) -> None:
    code = tmp_path / "wants_arguments.py"
    code.write_text(ARGUMENTS_AT_IMPORT)
    named.give_arguments(str(code), [])

    with pytest.raises(
        RecipeError, match=r"ended itself while it was imported .*Put what starts the training"
    ):
        named.build_model(str(code))


@pytest.mark.parametrize(
    ("default", "value", "fits"),
    [
        ("", 3, True), ("=1", 3, True), ("=1", 0.5, False), ("=0.1", 3, True), ("=0.1", "x", False),
        ("='relu'", "gelu", True), ("='relu'", 3, False), ("=False", True, True), ("=False", 1, False),
        ("=None", 3, False), ("=(1, 2)", "1,2", False),
    ],
)  # fmt: skip
def test_an_argument_reaches_a_parameter_whose_default_is_of_its_kind(
    tmp_path: Path, default: str, value: object, fits: bool
) -> None:
    code = tmp_path / f"kinds_{abs(hash((default, value)))}.py"
    code.write_text(
        f"import torch\ndef build_model(some_size{default}):\n    model = torch.nn.Linear(1, 1)\n"
        "    model.given = some_size\n    return model\n"
    )
    if fits:
        assert named.build_model(str(code), trained_with={"some-size": value}).given == value
    else:
        assert named.build_model(str(code), trained_with={"some-size": value}).given != value


def test_folds_score_each_sample_by_a_model_that_has_not_seen_it(recipe: Recipes) -> None:
    report = recipe("evaluate", "--folds", 3, "--train", f"{recipe.code}:train_model")

    assert any(name.startswith("folds ") for name in report["facts"])


def test_damaged_missing_and_foreign_weights_are_refused_with_a_sentence(tmp_path: Path) -> None:
    damaged, wrong = tmp_path / "damaged.pt", tmp_path / "wrong.pt"
    torch.save({"model": {"weight": torch.ones(9)}}, damaged)
    damaged.write_bytes(damaged.read_bytes()[:-300])
    torch.save({"epoch": 3}, wrong)

    with pytest.raises(RecipeError, match=r"model's file damaged\.pt is damaged"):
        weights.read(damaged)
    with pytest.raises(RecipeError, match="The model's files are gone"):
        weights.read(tmp_path / "gone")
    with pytest.raises(RecipeError, match=r"wrong\.pt holds no weights"):
        weights.read(wrong)
    with pytest.raises(RecipeError, match="several files of weights"):
        weights.find_file(tmp_path)
    with pytest.raises(RecipeError, match="do not fit the model"):
        weights.load_into(nn.Linear(2, 2), {"other": torch.ones(2)})


def test_why_a_recipe_could_not_work_stands_in_the_place_of_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_OUTPUT_DIR", str(tmp_path / "output"))

    with pytest.raises(SystemExit, match="The model's files are gone"):
        main(["evaluate", "--weights", str(tmp_path / "gone"), "--model", "gone_owner.py"])

    report = json.loads((tmp_path / "output" / REPORT).read_text())
    assert report["error"].startswith("The model's files are gone")


def test_objects_in_a_checkpoint_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"model": {"weight": torch.ones(2)}, "path": path}, path)  # a Path is no plain value

    with pytest.raises(RecipeError, match="holds more than tensors and plain values"):
        weights.read(path)


def test_code_without_the_named_functions_is_refused_with_their_names(tmp_path: Path) -> None:
    code = tmp_path / "empty_owner.py"
    code.write_text("def build_model():\n    return 3\n")

    with pytest.raises(RecipeError, match="has no function evaluation_data or build_dataset"):
        named.read_samples(str(code), 8)
    with pytest.raises(RecipeError, match=r"returned int, not a torch\.nn\.Module"):
        named.build_model(str(code))
    with pytest.raises(RecipeError, match=r"has no file gone_owner\.py"):
        named.build_model("gone_owner.py:build_model")


def test_the_operator_that_onnx_does_not_know_is_named() -> None:
    cause = RuntimeError(
        "No ONNX function found for <OpOverload(op='aten._linalg_det', overload='default')>."
    )
    error = RuntimeError("Failed to convert the exported program to an ONNX model.")
    error.__cause__ = cause

    assert "the operator aten._linalg_det;" in export.say_unknown(error)


def test_wrappers_of_training_libraries_are_taken_off_the_names() -> None:
    model = nn.Sequential(nn.Linear(3, 1))
    wrapped = {f"module.{name}": value for name, value in model.state_dict().items()}

    assert weights.load_into(nn.Sequential(nn.Linear(3, 1)), wrapped) is not None


def test_intervals_shrink_with_more_samples_and_nan_is_refused() -> None:
    few, many = (measure.Score("accuracy", (torch.arange(n) % 2).double()) for n in (20, 20_000))
    widths = [each["high"] - each["low"] for each in measure.metrics_of([few, many])]  # type: ignore[operator]

    assert widths[0] > 10 * widths[1]
    with pytest.raises(RecipeError, match="accuracy is nan on the evaluation data"):
        measure.metrics_of([measure.Score("accuracy", torch.tensor([1.0, float("nan")]))])


@pytest.fixture
def phones(trained: Path) -> tuple[nn.Module, named.Batch]:
    """An owner's model, and inputs of it."""
    code = next(trained.glob("*_code.py"))
    model = weights.load_into(named.build_model(f"{code}:build_model"), weights.read(trained / "model.pt"))
    return model.eval(), named.read_samples(str(code), 4).first(2)


@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_an_executorch_file_answers_as_the_model_does(phones: tuple[nn.Module, named.Batch]) -> None:
    pytest.importorskip("executorch", reason="executorch is not installed; CI does not install it")
    model, (inputs, _) = phones

    files, facts = mobile.export_for_phones(model, inputs)

    assert list(files) == [mobile.PTE]
    assert str(facts["phone_format"]).startswith("ExecuTorch")
    assert float(facts["phone_difference"]) <= export.TOLERANCE
    assert float(facts["phone_bytes"]) > 0


@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_what_executorch_does_not_know_is_named() -> None:
    pytest.importorskip("executorch", reason="executorch is not installed; CI does not install it")

    class Inverts(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            inverse: torch.Tensor = torch.linalg.inv(values)
            return inverse

    program = export.traced(Inverts(), (torch.eye(3)[None],), any_batch=False)

    with pytest.raises(mobile.NotLowered, match=r"aten\.linalg_inv"):
        mobile.to_executorch(program)


@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_an_onnx_file_for_phones_answers_and_names_what_phones_do_not_know(
    phones: tuple[nn.Module, named.Batch],
) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed; CI does not install it")
    model, (inputs, _) = phones
    first = tuple(each[:1] for each in inputs)

    data = mobile.optimized(export.to_onnx(export.traced(model, first, any_batch=False), first))
    facts = mobile.check(data)

    with torch.no_grad():
        assert torch.allclose(export.run_onnx(data, first), model(*first), atol=export.TOLERANCE)
    convolves = any(isinstance(each, nn.Conv2d) for each in model.modules())
    assert facts.get("operators that phones do not know") == ("BatchNormalization" if convolves else None)


def test_operators_and_types_that_phones_do_not_have_are_named_once() -> None:
    known = [("", "Conv"), ("ai.onnx", "Relu"), ("com.microsoft", "FusedConv")]
    strange = [("", "Einsum"), ("", "Einsum"), ("com.other", "Relu"), ("com.microsoft", "Attention")]

    assert mobile.unknown(known, ["FLOAT", "INT64"]) == {}
    assert mobile.unknown([*known, *strange], ["FLOAT", "DOUBLE", "FLOAT16"]) == {
        "operators that phones do not know": "Attention, Einsum, Relu",
        "types that phones do not know": "double, float16",
    }


def test_an_error_of_executorch_is_told_by_its_operators() -> None:
    error = RuntimeError("Operator torch._ops.aten.linalg_inv_ex.default is not in Core ATen opset")

    assert mobile.operators_in(error) == "aten.linalg_inv_ex.default"
    assert mobile.operators_in(RuntimeError("no\nmore")) == "RuntimeError: no"
