"""``python -m training.recipes RECIPE --weights PATH --model train.py:build_model``: one recipe, inside a job."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.config import TrainConfig
from training.recipes import changing, explain, export, folds, mobile, named, serving, weights
from training.recipes.gate import (
    MAX_LOSS,
    VERSION,
    Report,
    gate_of_change,
    gate_of_value,
    say,
    write_error,
    write_report,
)
from training.recipes.measure import Evaluate, Measured, measure
from training.recipes.named import RecipeError, Samples


class Recipe:
    """The owner's model, data and options, as the recipes use them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        named.give_arguments(options.model, options.script_arguments)
        self.path = Path(options.weights)
        self.data_path = options.data_path or named.path_of_data(self.path, *map(Path, options.others))
        self.device = named.choose_device()
        torch.manual_seed(options.seed)
        self.settings = [_settings(text) for text in options.settings]
        self.model = self.build(weights.read(self.path), settings=self.settings_of(0))
        self.evaluate: Evaluate | None = (
            named.find_function(options.evaluate, "evaluate") if options.evaluate else None
        )

    @cached_property
    def samples(self) -> Samples:
        """The evaluation data; a model that only answers needs none."""
        return self.read(self.options.data or self.options.model.partition(":")[0])

    def settings_of(self, number: int) -> dict[str, Any] | None:
        """The settings of one of the models, where they were given."""
        return self.settings[number] if number < len(self.settings) else None

    def untrained(self) -> nn.Module:
        """The model as it was before its training."""
        return named.build_model(self.options.model, trained_with=self.options.trained_with).to(self.device)

    def build(
        self,
        loaded: dict[str, torch.Tensor],
        function: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> nn.Module:
        model = named.build_model(
            function or self.options.model,
            settings,
            trained_with=None if function else self.options.trained_with,
        )
        return weights.load_into(model, loaded).to(self.device)

    def read(self, function: str) -> Samples:
        samples = named.read_samples(function, self.options.batch_size, data_path=self.data_path)
        return samples.on(
            self.device
        )  # here for all recipes: the owner's functions get batches and model together

    def measure(self, model: nn.Module) -> Measured:
        return measure(model.to(self.device), self.samples, self.evaluate)

    def train_function(self) -> changing.Train | None:
        return named.find_function(self.options.train, "train_model") if self.options.train else None

    def learned_from(self) -> Samples:
        return self.read(self.options.train_data) if self.options.train_data else self.samples


def evaluate(recipe: Recipe) -> Report:
    measured = recipe.measure(recipe.model)
    report = _report("evaluate", None, measured)
    report["gate"] = gate_of_value(measured, recipe.options.limit)
    if recipe.options.folds:
        train = recipe.train_function()
        if train is None:
            raise RecipeError("Folds train the model anew; name the function that trains it with --train.")
        folded = folds.cross_validate(recipe.untrained, train, recipe.learned_from(), recipe.options.folds)
        report["facts"] |= {f"folds {each['name']}": each["value"] for each in folded}
    return report


def quantize(recipe: Recipe) -> Report:
    options, train = recipe.options, recipe.train_function()
    if options.qat and train is None:
        raise RecipeError(
            "Quantization-aware training needs the function that trains the model; name it with --train."
        )
    made = changing.quantize(
        recipe.model, options.bits, train=train if options.qat else None, data=recipe.learned_from()
    )
    return _changed(recipe, "quantize", made)


def prune(recipe: Recipe) -> Report:
    made = changing.prune_weights(
        recipe.model,
        recipe.options.amount,
        structured=recipe.options.structured,
        fine_tune=recipe.train_function(),
        data=recipe.learned_from(),
    )
    return _changed(recipe, "prune", made)


def distil(recipe: Recipe) -> Report:
    if not recipe.options.student:
        raise RecipeError(
            "Distillation needs a smaller model; name the function that builds it with --student."
        )
    student = named.build_model(recipe.options.student)
    config = TrainConfig(
        epochs=recipe.options.epochs,
        batch_size=recipe.options.batch_size,
        learning_rate=recipe.options.learning_rate,
        checkpoint_every=None,
        checkpoint_dir=".training",
        resume=False,
    )
    made = changing.distil(recipe.model, student, recipe.learned_from(), config)
    made.model.requires_grad_(False)
    return _changed(recipe, "distil", made)


def average(recipe: Recipe) -> Report:
    paths = [recipe.path, *map(Path, recipe.options.others)]
    model = recipe.build(changing.average([weights.read(path) for path in paths]))
    return _changed(recipe, "average", changing.Changed(model, {"models": len(paths)}))


def ensemble(recipe: Recipe) -> Report:
    """Measure the mean of several models' answers beside the first of them, and keep the answers."""
    if not recipe.options.others:
        raise RecipeError("An ensemble needs two models or more; name the others with --with.")
    members = [
        recipe.build(weights.read(Path(path)), settings=recipe.settings_of(number))
        for number, path in enumerate(recipe.options.others, 1)
    ]
    classes = not recipe.samples.first(1)[1].is_floating_point()
    together = changing.Ensemble([recipe.model, *members], classes=classes).to(recipe.device)
    report = _report("ensemble", recipe.measure(recipe.model), recipe.measure(together))
    report["facts"]["models"] = len(members) + 1
    report["facts"]["answers"] = weights.save_answers(together, recipe.samples).name
    return report


def export_model(recipe: Recipe) -> Report:
    before = recipe.measure(recipe.model)
    inputs = recipe.samples.first(2)[0]
    files, facts = export.export(recipe.model, inputs, onnx=not recipe.options.no_onnx)
    report = _report("export", before, None)
    report["facts"] |= facts
    if recipe.options.mobile:
        more, found = mobile.export_for_phones(recipe.model, inputs)
        files |= more
        report["facts"] |= found
    report["checkpoint"] = weights.save_files(files).name
    return report


def explain_model(recipe: Recipe) -> Report:
    measured = recipe.measure(recipe.model)
    inputs, targets = recipe.samples.first(recipe.options.samples)
    batch = tuple(each.to(recipe.device) for each in inputs), targets
    found = explain.explain(recipe.model, batch, recipe.options.layer)
    report = _report("explain", measured, None)
    shown = explain.show(found, (inputs, targets))
    report["facts"] |= {"pictures and tables": shown, "completeness_error": found.completeness_error}
    if found.layer:
        report["facts"] |= {"layer": found.layer, "share of the answers through it": found.through_layer}
    return report


def _changed(recipe: Recipe, name: str, made: changing.Changed) -> Report:
    """Measure a new model beside the old one, and keep it; the gate says whether it may become a model."""
    before, after = recipe.measure(recipe.model), recipe.measure(made.model)
    report = _report(name, before, after)
    report["gate"] = gate_of_change(before, after, recipe.options.max_loss)
    report["facts"] |= {"smaller": round(before["size_bytes"] / after["size_bytes"], 2), **made.facts}
    report["left_out"] += made.left_out
    report["checkpoint"] = weights.save_weights(made.model).name
    return report


def _report(name: str, before: Measured | None, after: Measured | None) -> Report:
    return Report(
        v=VERSION, recipe=name, before=before, after=after, gate=None, facts={}, left_out=[], checkpoint=None
    )


RECIPES: dict[str, Callable[[Recipe], Report]] = {
    "evaluate": evaluate,
    "export": export_model,
    "quantize": quantize,
    "prune": prune,
    "distil": distil,
    "average": average,
    "ensemble": ensemble,
    "explain": explain_model,
}

SERVE = "serve"  # answers requests until it is stopped, so it has no report


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.recipes", description="Run a recipe on a model."
    )
    parser.add_argument("recipe", choices=(*RECIPES, SERVE))
    parser.add_argument("--weights", required=True, help="file or folder of the model")
    parser.add_argument("--model", required=True, help="function that builds it, as train.py:build_model")
    parser.add_argument("--data", help="function that returns the evaluation data")
    parser.add_argument("--data-path", help="argument of that function (default: the job's only dataset)")
    parser.add_argument("--evaluate", help="function of model and data that returns metrics by name")
    parser.add_argument("--train", help="function that trains a model on data: folds, fine-tuning")
    parser.add_argument("--train-data", help="function that returns the data to train on")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=_number, help="value that the first metric has to reach")
    parser.add_argument("--max-loss", type=_number, default=MAX_LOSS, help="accuracy that may be lost")
    parser.add_argument("--folds", type=int, default=0, help="parts for cross-validation")
    parser.add_argument("--no-onnx", action="store_true", help="export a torch program alone")
    parser.add_argument("--mobile", action="store_true", help="export a file for phones as well")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=8, help="of a quantized weight")
    parser.add_argument("--qat", action="store_true", help="train with rounded weights before they are kept")
    parser.add_argument("--amount", type=_share, default=0.5, help="share of weights to prune")
    parser.add_argument("--structured", action="store_true", help="prune whole channels")
    parser.add_argument("--student", help="function that builds the smaller model")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=_number, default=1e-3)
    parser.add_argument("--with", dest="others", action="append", default=[], help="another model beside it")
    parser.add_argument(
        "--settings",
        action="append",
        default=[],
        help="JSON for the function that builds each model, in order",
    )
    parser.add_argument(
        "--script-arguments",
        type=json.loads,
        default=[],
        help="JSON list: the command line that the owner's file finds when it is imported",
    )
    parser.add_argument(
        "--trained-with", type=json.loads, default={}, help="JSON object of the training's arguments, by name"
    )
    parser.add_argument("--samples", type=int, default=8, help="samples to explain")
    parser.add_argument("--layer", help="layer whose units are explained, by its name in the model")
    return parser.parse_args(arguments)


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RecipeError(f"{text[:60]!r} is no JSON object of settings.")
    return found


def _number(text: str) -> float:
    value = float(text)
    if not abs(value) < float("inf"):
        raise argparse.ArgumentTypeError("give a finite number")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError("give a share above 0 and below 1, such as 0.5")
    return value


def run(arguments: Sequence[str] | None = None) -> Report:
    """Run one recipe, write its report, and return it.

    Raises:
        RecipeError: the recipe cannot work with what it was given.
    """
    options = parse(arguments)
    report = RECIPES[options.recipe](Recipe(options))
    write_report(report)
    return report


def main(arguments: Sequence[str] | None = None) -> Any:
    try:
        if (options := parse(arguments)).recipe == SERVE:
            serving.serve(Recipe(options).model)
            return
        report = run(arguments)
    except RecipeError as error:
        write_error(str(error))
        sys.exit(str(error))
    sys.stdout.write(say(report) + "\n")


if __name__ == "__main__":
    main()
