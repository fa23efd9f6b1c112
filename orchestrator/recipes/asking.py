"""What a person asks of a recipe, and the words that its program gets."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)

from orchestrator.exceptions import Sentence
from orchestrator.spec.data_names import DATASET_REFERENCE
from orchestrator.spec.field_types import Gib, Name
from orchestrator.spec.packages import Package

FUNCTION = r"^([\w./][\w./-]*\.py|[A-Za-z_][\w.]*)(:[A-Za-z_]\w*)?$"
ONNX_PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")
RecipeName = Literal["evaluate", "export", "quantize", "prune", "distil", "average", "ensemble", "explain"]
Function = Annotated[StrictStr, Field(max_length=300, pattern=FUNCTION, examples=["train.py:build_model"])]
Number = Annotated[float, Field(allow_inf_nan=False)]


def _reference(value: str) -> str:
    if not DATASET_REFERENCE.fullmatch(value):
        raise ValueError("give a model as name@version, such as digits@2")
    return value


Reference = Annotated[StrictStr, AfterValidator(_reference), Field(max_length=300)]


class ServeSpec(BaseModel):
    """A service that answers with a model, as people ask for it."""

    model_config = ConfigDict(extra="forbid")

    name: StrictStr | None = Field(
        None, max_length=64, description="of the service; default: that of the model"
    )
    model: Function | None = Field(
        None, description="builds the model; default: build_model of the job's script"
    )
    gpus: Annotated[StrictInt, Field(ge=0, le=1)] | None = Field(
        None, description="of a replica; default: one if the model's job had one"
    )
    gpu_memory_gib: Gib | None = Field(None, description="memory of a GPU that a replica needs")
    with_packages: list[Package] = Field(
        default_factory=list, max_length=50, description="packages that the environment adds"
    )
    min_replicas: Annotated[StrictInt, Field(ge=0, le=64)] = Field(
        0, description="replicas that run also without requests"
    )


class Option(NamedTuple):
    """An option of the program, and the recipes that read it; none are all."""

    word: str
    recipes: tuple[RecipeName, ...] = ()


CHANGES: Final[tuple[RecipeName, ...]] = ("quantize", "prune", "distil", "average")
OPTIONS: Final[Mapping[str, Option]] = {
    "model": Option("--model"),
    "data": Option("--data"),
    "evaluate": Option("--evaluate"),
    "limit": Option("--limit", ("evaluate",)),
    "folds": Option("--folds", ("evaluate",)),
    "train": Option("--train", ("evaluate", "prune", "quantize")),
    "train_data": Option("--train-data", ("evaluate", "prune", "distil", "quantize")),
    "bits": Option("--bits", ("quantize",)),
    "qat": Option("--qat", ("quantize",)),
    "max_loss": Option("--max-loss", CHANGES),
    "amount": Option("--amount", ("prune",)),
    "structured": Option("--structured", ("prune",)),
    "student": Option("--student", ("distil",)),
    "epochs": Option("--epochs", ("distil",)),
    "learning_rate": Option("--learning-rate", ("distil",)),
    "onnx": Option("--no-onnx", ("export",)),
    "mobile": Option("--mobile", ("export",)),
    "others": Option("--with", ("average", "ensemble")),
    "settings": Option("--settings", ("ensemble",)),
    "samples": Option("--samples", ("explain",)),
    "layer": Option("--layer", ("explain",)),
}
SUFFIXES: Final[Mapping[str, str]] = {  # of the models that recipes make
    "export": "exported",
    "quantize": "int8",
    "prune": "pruned",
    "distil": "student",
    "average": "average",
}


class RecipeSpec(BaseModel):
    """A recipe as people ask for it; functions are of the code of the model's job, as train.py:build_model."""

    model_config = ConfigDict(extra="forbid")

    recipe: RecipeName = Field(description="what to do with the model")
    model: Function | None = Field(
        None, description="builds the model; default: build_model of the job's script"
    )
    data: Function | None = Field(
        None, description="returns the evaluation data; default: evaluation_data or build_dataset, same file"
    )
    evaluate: Function | None = Field(None, description="of model and data; returns metrics by name")
    limit: Number | None = Field(None, description="value that the first metric has to reach (evaluate)")
    folds: Annotated[StrictInt, Field(ge=2, le=100)] | None = Field(
        None, description="cross-validates with the function train (evaluate)"
    )
    train: Function | None = Field(
        None, description="trains a model on data (evaluate with folds, prune, quantize with qat)"
    )
    train_data: Function | None = Field(None, description="data to train on; default: data")
    max_loss: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        None, description="accuracy that may be lost, default 0.02; for an error its relative growth"
    )
    bits: Literal[4, 8] | None = Field(None, description="of a quantized weight, default 8 (quantize)")
    qat: StrictBool = Field(
        False, description="trains with rounded weights before they are kept; needs train (quantize)"
    )
    amount: Annotated[Number, Field(gt=0, lt=1)] | None = Field(
        None, description="share of the weights to prune, default 0.5"
    )
    structured: StrictBool = Field(False, description="prunes whole output channels")
    student: Function | None = Field(None, description="builds the smaller model (distil)")
    epochs: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = Field(None, description="of the student")
    learning_rate: Annotated[Number, Field(gt=0, le=100)] | None = Field(None, description="of the student")
    onnx: StrictBool = Field(True, description="export to ONNX as well as to a torch program")
    mobile: StrictBool = Field(
        False, description="export for phones as well: ExecuTorch where the job has it, else checked ONNX"
    )
    others: list[Reference] = Field(
        default_factory=list,
        max_length=31,
        description="models to average or to ask with it, such as digits@2",
    )
    settings: list[dict[str, StrictBool | StrictInt | float | StrictStr]] = Field(
        default_factory=list,
        max_length=32,
        description="for the function model, of each model in their order (ensemble)",
    )
    samples: Annotated[StrictInt, Field(ge=1, le=64)] | None = Field(
        None, description="to explain, default 8"
    )
    layer: Annotated[StrictStr, Field(max_length=300, pattern=r"^\w+(\.\w+)*$")] | None = Field(
        None,
        description="whose units are explained; default: the last convolution or linear before the head (explain)",
        examples=["layer4.1.conv2"],
    )
    name: StrictStr | None = Field(
        None, max_length=64, description="of the model that comes of it; default: with a suffix"
    )
    gpus: Annotated[StrictInt, Field(ge=0, le=1)] | None = Field(
        None, description="default: one if the model's job had one"
    )
    gpu_memory_gib: Gib | None = Field(None, description="memory of a GPU that the job needs")
    with_packages: list[Package] = Field(
        default_factory=list, max_length=50, description="packages that the job's environment adds"
    )
    job_name: Name | None = Field(None, description="of the job; default: the recipe and the model")

    @model_validator(mode="after")
    def _of_this_recipe(self) -> Self:
        for field, option in OPTIONS.items():
            if field in self.model_fields_set and option.recipes and self.recipe not in option.recipes:
                raise ValueError(
                    Sentence(
                        "{field} is for {recipes}, not for {recipe}",
                        field=field,
                        recipes=" and ".join(option.recipes),
                        recipe=self.recipe,
                    )
                )
        if self.recipe == "distil" and self.student is None:
            raise ValueError("distil needs student: the function that builds the smaller model")
        if self.recipe in {"average", "ensemble"} and not self.others:
            raise ValueError(
                Sentence("{recipe} needs others: the models beside this one", recipe=self.recipe)
            )
        if self.folds is not None and self.train is None:
            raise ValueError("folds needs train: the function that trains a model on data")
        if self.recipe == "quantize" and self.qat != (self.train is not None):
            raise ValueError(
                "qat needs train, and train needs qat: the function that trains with rounded weights"
            )
        if self.name is not None and self.recipe not in SUFFIXES:
            raise ValueError(Sentence("{recipe} makes no model, so leave name out", recipe=self.recipe))
        return self

    @property
    def suffix(self) -> str | None:
        """Of the name of the model that comes of it; None: it makes none."""
        if self.recipe == "quantize" and self.bits == 4:
            return "int4"
        return SUFFIXES.get(self.recipe)

    @property
    def packages(self) -> list[Package]:
        """Packages of the job's environment that the recipe adds."""
        needed = ONNX_PACKAGES if self.recipe == "export" and (self.onnx or self.mobile) else ()
        return [*self.with_packages, *(each for each in needed if each not in self.with_packages)]

    def options(self) -> dict[str, Any]:
        """The options that were asked for, by field; null stands for the default."""
        given = {name: getattr(self, name) for name in OPTIONS if name in self.model_fields_set}
        return {name: value for name, value in given.items() if value is not None}


def words_of(
    recipe: str, options: Mapping[str, Any], paths: Sequence[str], training: Sequence[str] = ()
) -> list[str]:
    """The arguments of the program.

    Args:
        paths: where the model's files are, then the files of the others.
        training: those that tell of the training behind the model.
    """
    others = (f"--with={path}" for path in paths[1:])
    return [recipe, f"--weights={paths[0]}", *_words(options), *training, *others]


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    for name, option in OPTIONS.items():
        value = options.get(name)
        if name == "others" or value is None:
            continue
        if name == "settings":
            yield from (f"{option.word}={json.dumps(each)}" for each in value)
        elif isinstance(value, bool):
            if value != (name == "onnx"):
                yield option.word
        else:
            yield f"{option.word}={value}"
