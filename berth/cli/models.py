"""berth model: where models came from, as tables and sentences."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from berth.cli.printing import safe, say
from berth.cli.tables import grid
from berth.client import Model, Recipe
from berth.shared import words
from berth.shared.metric_names import in_order

MOST_VALUES = 3  # metrics in a line


def model_table(models: Sequence[Model]) -> Table:
    """A line for each model, with the metrics of its step."""
    table = grid("model", "from", "step", "metrics", "size")
    for each in models:
        table.add_row(
            Text(safe(each.reference)),
            Text(safe(each.job_name) if each.job else "a job that is gone"),
            "" if each.step is None else f"{each.step:,}",
            Text(_metrics(each.values, MOST_VALUES)),
            words.size(each.size_bytes),
        )
    return table


def model_facts(model: Model) -> Table:
    """Everything that is known of one model, a line each."""
    table = grid("", "")
    source = f"{model.job_name} {model.job[-8:]}" if model.job else "a job that is gone"
    facts = {
        "model": model.reference,
        "about": model.description,
        "from": f"{source}, attempt {model.attempt}, {model.checkpoint}",
        "step": "" if model.step is None else f"{model.step:,}",
        "metrics": _metrics(model.values, len(model.values)),
        "size": words.size(model.size_bytes),
        "checksum": model.sha256,
        "files": "\n".join(f"{each['path']}  {words.size(each['size_bytes'])}" for each in model.files),
        "read by": "\n".join(f"{each['name']} {each['id'][-8:]}" for each in model.readers),
    }
    for name, value in facts.items():
        if value:
            table.add_row(Text(name, "dim"), Text(safe(value)))
    return table


def say_model(model: Model) -> None:
    """Say what was made, and how a job reads it."""
    step = "" if model.step is None else f" at step {model.step:,}"
    say(
        f"{safe(model.reference)} is {safe(model.job_name)}{step} ({words.size(model.size_bytes)}). "
        f"Use it with: berth run --data {safe(model.reference)} evaluate.py"
    )


def recipe_table(recipes: Sequence[Recipe]) -> Table:
    """A line for each recipe of a model, with what came of it."""
    table = grid("recipe", "of", "job", "result", "outcome")
    for each in recipes:
        job = f"{each.job[-8:]} {each.state}" if each.job else "a job that is gone"
        outcome = safe(each.detail) or "not yet"
        table.add_row(each.recipe, Text(safe(each.source)), job, Text(safe(each.result or "")), Text(outcome))
    return table


def say_recipe(recipe: Recipe) -> None:
    """Say which job was submitted, and where its report will be."""
    job = (recipe.job or "")[-8:]
    say(
        f"Submitted job {job}: {recipe.recipe} of {safe(recipe.source)}. "
        f"Follow it with: berth logs -f {job}. Then see: berth model recipes {safe(recipe.source)}"
    )


def _metrics(values: Mapping[str, float], most: int) -> str:
    return ", ".join(f"{safe(name)} {words.value(values[name])}" for name in list(in_order(values))[:most])
