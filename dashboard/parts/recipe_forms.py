"""The recipes of a model as forms: what each does, and the fields that it asks for, which are REST's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.sentences.errors import said

SERVE = "serve"  # the form of a service, beside the recipes' forms
GPUS = (("", "as its job had"), ("0", "none"), ("1", "1"))


@dataclass(frozen=True, slots=True)
class RecipeField:
    """One field; ``control`` is number, choice, check or text, ``name`` has the kind that ``rest_form`` reads."""

    name: str
    label: str
    hint: str = ""
    placeholder: str = ""
    control: str = "text"
    choices: tuple[tuple[str, str], ...] = ()
    value: str = ""  # of a check: "on" where REST's default is true, and unticked it sends "off"
    text: str = ""  # what stands in it

    @property
    def key(self) -> str:
        """The name without its kind, for the ids of controls."""
        return self.name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class RecipeForm:
    """One recipe with its own fields, and the fields of ``FUNCTIONS`` where it reads them."""

    kind: str
    title: str
    about: str
    fields: tuple[RecipeField, ...] = ()
    has_gate: bool = False
    makes_model: bool = False
    measures: bool = True  # with a function of the owner's


GATE = RecipeField(
    "max_loss:number",
    "Accuracy that may be lost",
    "The gate: a result that loses more becomes no model. For an error, its relative growth.",
    "0.02",
    "number",
)
NAME = RecipeField("name:optional", "Name of the new model", "Empty: this name with a suffix.")
TRAIN = RecipeField(
    "train:optional", "Function that trains", "Of a model and data.", placeholder="train.py:train_model"
)
OTHERS = RecipeField(
    "others:words", "Other models", "With commas between them, each with its version.", "digits@2, digits@3"
)
BUILDS = RecipeField(
    "model:optional",
    "Function that builds the model",
    "Empty: build_model of the job's script.",
    "train.py:build_model",
)
DATA = RecipeField(
    "data:optional",
    "Function with evaluation data",
    "Empty: evaluation_data of the same file.",
    "train.py:evaluation_data",
)
EVALUATE = RecipeField(
    "evaluate:optional",
    "Function that evaluates",
    "Empty: accuracy and loss, or errors.",
    "metrics.py:evaluate",
)
FORMS = (
    RecipeForm(
        "evaluate",
        "Evaluate",
        "metrics with 95 % confidence intervals, size, latency and memory",
        (
            RecipeField("limit:number", "Gate: the first metric reaches", "Empty: no gate.", "0.9", "number"),
            RecipeField("folds:number", "Folds", "Cross-validates; needs the function below.", "5", "number"),
            TRAIN,
        ),
    ),
    RecipeForm(
        "export",
        "Export",
        "a torch program and ONNX, which answer the same inputs as the model does",
        (
            RecipeField("onnx:switch", "ONNX beside the torch program", control="check", value="on"),
            RecipeField(
                "mobile:switch",
                "For phones too",
                "An ExecuTorch file where executorch is among the packages, else ONNX with its operators checked.",
                control="check",
            ),
        ),
        makes_model=True,
        measures=False,
    ),
    RecipeForm(
        "quantize",
        "Quantize",
        "weights as int8 or int4, measured before and after",
        (
            RecipeField(
                "bits:number", "Bits of a weight", control="choice", choices=(("8", "8"), ("4", "4"))
            ),
            RecipeField("qat:switch", "Train with rounded weights first", control="check"),
            RecipeField(
                "train:optional", "Function that trains", "Only with the box ticked.", "train.py:train_model"
            ),
        ),
        has_gate=True,
        makes_model=True,
    ),
    RecipeForm(
        "prune",
        "Prune",
        "the smallest weights become zero; a function of yours may train the others again",
        (
            RecipeField("amount:number", "Share of the weights", "", "0.5", "number"),
            RecipeField("structured:switch", "Whole output channels", control="check"),
            TRAIN,
        ),
        has_gate=True,
        makes_model=True,
    ),
    RecipeForm(
        "distil",
        "Distil",
        "a smaller model learns the answers of this one",
        (
            RecipeField("student", "Function that builds the student", "Needed.", "train.py:build_student"),
            RecipeField("epochs:number", "Epochs", "", "5", "number"),
            RecipeField("learning_rate:number", "Learning rate", "", "0.001", "number"),
        ),
        has_gate=True,
        makes_model=True,
    ),
    RecipeForm(
        "average",
        "Average",
        "the mean of the weights of models of one shape",
        (OTHERS,),
        has_gate=True,
        makes_model=True,
    ),
    RecipeForm(
        "ensemble",
        "Ensemble",
        "the mean of the answers of several models, measured beside this one",
        (OTHERS,),
    ),
    RecipeForm(
        "explain",
        "Explain",
        "which inputs and which units of a layer the answers depend on, as pictures and tables",
        (
            RecipeField("samples:number", "Samples", "", "8", "number"),
            RecipeField(
                "layer:optional",
                "Layer",
                "How much flows through its units. Empty: the last before the head.",
                "layer4.1.conv2",
            ),
        ),
        measures=False,
    ),
)


@dataclass(frozen=True, slots=True)
class Refused:
    """A form that REST refused, as it was typed."""

    kind: str  # of the recipe, or SERVE
    texts: Mapping[str, str]
    error: str

    @property
    def packages(self) -> str:
        return self.texts.get("with_packages:words", "")

    @property
    def gpus(self) -> str:
        return self.texts.get("gpus:number", "")


@dataclass(frozen=True, slots=True)
class ShownForm:
    """A form with all of its fields in their order, and why it was refused."""

    form: RecipeForm
    own: tuple[RecipeField, ...]
    functions: tuple[RecipeField, ...]
    refused: Refused | None = None


def shown_forms(refused: Refused | None = None) -> list[ShownForm]:
    """All forms as they open; a refused one has what was typed."""
    return [_shown(form, refused if refused and refused.kind == form.kind else None) for form in FORMS]


def gpu_choices() -> list[tuple[str, str]]:
    return [(value, said(text)) for value, text in GPUS]


def _shown(form: RecipeForm, refused: Refused | None) -> ShownForm:
    form = replace(form, title=said(form.title), about=said(form.about))
    own = (*form.fields, *([GATE] if form.has_gate else []), *([NAME] if form.makes_model else []))
    functions = (BUILDS, DATA, *([EVALUATE] if form.measures else []))
    return ShownForm(form, _filled(own, refused), _filled(functions, refused), refused)


def _filled(fields: tuple[RecipeField, ...], refused: Refused | None) -> tuple[RecipeField, ...]:
    return tuple(
        replace(
            each,
            label=said(each.label),
            hint=said(each.hint),
            text=refused.texts.get(each.name, "") if refused else each.value,
        )
        for each in fields
    )
