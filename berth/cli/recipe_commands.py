"""berth model evaluate, export, quantize, ...: jobs made from a model."""

from typing import Annotated

import typer

from berth.cli.options import Json
from berth.cli.printing import remark, safe, say, show_json
from berth.shared.arguments import memory_gib

PANEL = "Recipes"
commands = typer.Typer()
Reference = Annotated[
    str, typer.Argument(metavar="NAME[@VERSION]", help="Model; default: its newest version")
]
Function = Annotated[
    str | None, typer.Option("--model", metavar="FILE:FUNCTION", help="Function that builds the model")
]
Data = Annotated[
    str | None, typer.Option("--data", metavar="FILE:FUNCTION", help="Function with the evaluation data")
]
Evaluate = Annotated[
    str | None, typer.Option("--evaluate", metavar="FILE:FUNCTION", help="Function with metrics of your own")
]
Train = Annotated[
    str | None, typer.Option("--train", metavar="FILE:FUNCTION", help="Function that trains a model on data")
]
TrainData = Annotated[
    str | None, typer.Option("--train-data", metavar="FILE:FUNCTION", help="Function with data to train on")
]
MaxLoss = Annotated[float | None, typer.Option("--max-loss", help="Accuracy that may be lost; default: 0.02")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the model that comes of it")]
Gpus = Annotated[int | None, typer.Option("--gpus", "-g", help="GPUs of the job: 0 or 1")]
With = Annotated[list[str], typer.Option("--with", metavar="PACKAGE", help="Package that the job needs")]
NONE: list[str] = []


@commands.command(rich_help_panel=PANEL)
def evaluate(
    reference: Reference,
    model: Function = None,
    data: Data = None,
    evaluate: Evaluate = None,
    limit: Annotated[float | None, typer.Option(help="Value that the first metric has to reach")] = None,
    folds: Annotated[int | None, typer.Option(help="Parts for cross-validation; needs --train")] = None,
    train: Train = None,
    train_data: TrainData = None,
    gpus: Gpus = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Measure a model: metrics with confidence intervals, size, latency and memory."""
    options = {"limit": limit, "folds": folds, "train": train, "train_data": train_data}
    _run(
        reference,
        "evaluate",
        as_json,
        packages,
        model=model,
        data=data,
        evaluate=evaluate,
        gpus=gpus,
        **options,
    )


@commands.command(rich_help_panel=PANEL)
def export(
    reference: Reference,
    model: Function = None,
    data: Data = None,
    onnx: Annotated[bool, typer.Option("--onnx/--no-onnx", help="ONNX beside a torch program")] = True,
    mobile: Annotated[
        bool, typer.Option("--mobile", help="A file for phones too: ExecuTorch, else checked ONNX")
    ] = False,
    name: Name = None,
    gpus: Gpus = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Export a model by torch.export and as ONNX, verified on the same inputs."""
    options = {"onnx": None if onnx else False, "mobile": mobile or None}
    _run(reference, "export", as_json, packages, model=model, data=data, name=name, gpus=gpus, **options)


@commands.command(rich_help_panel=PANEL)
def quantize(
    reference: Reference,
    model: Function = None,
    data: Data = None,
    evaluate: Evaluate = None,
    bits: Annotated[int | None, typer.Option(help="Bits of a weight: 8 or 4; default: 8")] = None,
    qat: Annotated[
        bool, typer.Option("--qat", help="Training with rounded weights first, by --train")
    ] = False,
    train: Train = None,
    train_data: TrainData = None,
    max_loss: MaxLoss = None,
    name: Name = None,
    gpus: Gpus = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Make a model with int8 or int4 weights."""
    common = {"model": model, "data": data, "evaluate": evaluate, "name": name, "gpus": gpus}
    options = {"bits": bits, "qat": qat or None, "train": train, "train_data": train_data}
    _run(reference, "quantize", as_json, packages, max_loss=max_loss, **options, **common)


@commands.command(rich_help_panel=PANEL)
def prune(
    reference: Reference,
    model: Function = None,
    data: Data = None,
    evaluate: Evaluate = None,
    amount: Annotated[float | None, typer.Option(help="Share of the weights; default: 0.5")] = None,
    structured: Annotated[bool, typer.Option("--structured", help="Prune whole output channels")] = False,
    train: Train = None,
    train_data: TrainData = None,
    max_loss: MaxLoss = None,
    name: Name = None,
    gpus: Gpus = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Set the smallest weights of a model to zero; --train trains the others again."""
    common = {"model": model, "data": data, "evaluate": evaluate, "name": name, "gpus": gpus}
    options = {"amount": amount, "train": train, "train_data": train_data, "max_loss": max_loss}
    _run(reference, "prune", as_json, packages, structured=structured or None, **common, **options)


@commands.command(rich_help_panel=PANEL)
def distil(
    reference: Reference,
    student: Annotated[
        str, typer.Option("--student", metavar="FILE:FUNCTION", help="Function that builds the smaller model")
    ],
    model: Function = None,
    data: Data = None,
    evaluate: Evaluate = None,
    train_data: TrainData = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the student; default: 5")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of the student")] = None,
    max_loss: MaxLoss = None,
    name: Name = None,
    gpus: Gpus = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Train a smaller model on a model's answers."""
    common = {"model": model, "data": data, "evaluate": evaluate, "name": name, "gpus": gpus}
    options = {
        "train_data": train_data,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "max_loss": max_loss,
    }
    _run(reference, "distil", as_json, packages, student=student, **common, **options)


@commands.command(rich_help_panel=PANEL)
def average(
    reference: Reference,
    others: Annotated[list[str], typer.Argument(metavar="OTHER...", help="Models to average with it")],
    model: Function = None,
    data: Data = None,
    evaluate: Evaluate = None,
    max_loss: MaxLoss = None,
    name: Name = None,
    gpus: Gpus = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Average the weights of models of one shape and different names."""
    common = {"model": model, "data": data, "evaluate": evaluate, "name": name, "gpus": gpus}
    _run(reference, "average", as_json, packages, others=others, max_loss=max_loss, **common)


@commands.command(rich_help_panel=PANEL)
def ensemble(
    reference: Reference,
    others: Annotated[list[str], typer.Argument(metavar="OTHER...", help="Models to ask with it")],
    model: Function = None,
    data: Data = None,
    evaluate: Evaluate = None,
    gpus: Gpus = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Measure the mean of the answers of several models, and keep it."""
    common = {"model": model, "data": data, "evaluate": evaluate, "gpus": gpus}
    _run(reference, "ensemble", as_json, packages, others=others, **common)


@commands.command(rich_help_panel=PANEL)
def explain(
    reference: Reference,
    model: Function = None,
    data: Data = None,
    samples: Annotated[int | None, typer.Option(help="Samples to explain; default: 8")] = None,
    layer: Annotated[
        str | None, typer.Option("--layer", help="Layer whose units are explained; default: before the head")
    ] = None,
    gpus: Gpus = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Show which inputs a model's answers depend on, as pictures and tables."""
    options = {"samples": samples, "layer": layer}
    _run(reference, "explain", as_json, packages, model=model, data=data, gpus=gpus, **options)


@commands.command(rich_help_panel=PANEL)
def serve(
    reference: Reference,
    model: Function = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the service; default: the model's")
    ] = None,
    least: Annotated[
        int | None, typer.Option("--least", min=0, help="Replicas that run without requests")
    ] = None,
    gpus: Gpus = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--memory", "--gpu-memory", metavar="GIB", help="Memory of a GPU that a replica needs"),
    ] = None,
    packages: With = NONE,
    as_json: Json = False,
) -> None:
    """Begin a service that answers requests with a model."""
    from berth.cli.choosing import connect

    options = {
        "model": model,
        "name": name,
        "min_replicas": least,
        "gpus": gpus,
        "gpu_memory_gib": None if gpu_memory is None else memory_gib(gpu_memory),
    }
    made = connect().serve_model(reference, with_packages=packages or None, **options)
    key = made.make_key("first")
    if as_json:
        show_json({**made.json, "key": key})
        return
    say(f"{safe(made.name)} answers at {made.address} to the key below, which is shown this once.")
    say(key)


@commands.command(rich_help_panel=PANEL)
def recipes(reference: Reference, as_json: Json = False) -> None:
    """List the recipes of a model with their outcome."""
    from berth.cli.choosing import connect

    found = connect().recipes(reference)
    if as_json:
        show_json([each.json for each in found])
        return
    from berth.cli.models import recipe_table
    from berth.cli.tables import terminal

    if found:
        terminal().print(recipe_table(found))
    else:
        remark("No recipes of this model yet. Measure it with: berth model evaluate NAME")


def _run(reference: str, recipe: str, as_json: bool, packages: list[str], **options: object) -> None:
    from berth.cli.choosing import connect

    made = connect().run_recipe(reference, recipe, with_packages=packages or None, **options)
    if as_json:
        show_json(made.json)
        return
    from berth.cli.models import say_recipe

    say_recipe(made)
