"""Pages in German: every text is marked for translation, and every mark has its German with the same values."""

import re
import string
from pathlib import Path

import pytest

from deploy.translations import catalog, read
from orchestrator.models import AttemptState, JobState
from tests.dashboard.page_texts import marked_in_module, marked_in_template, unmarked_in_template
from tests.system.server import REPOSITORY

TEMPLATES = sorted((REPOSITORY / "templates").rglob("*.html"))
MODULES = sorted((REPOSITORY / "dashboard").rglob("*.py"))
STYLES = sorted((REPOSITORY / "static/css").glob("*.css"))
GERMAN = catalog(REPOSITORY / "orchestrator/locale/de")
SCRIPTS = read(REPOSITORY / "orchestrator/locale/de/scripts.po")
# Django's own page of its back door, and a document for programs.
NOT_OURS = {"admin/base_site.html", "ninja/swagger.html"}
# Names and units, the same in every language.
_NAMES = (
    *(
        "Berth",
        "GPU",
        "CPU",
        "RAM",
        "GiB",
        "MiB",
        "KiB",
        "kWh",
        "ms",
        "UTC",
        "ID",
        "URL",
        "CSV",
        "SVG",
        "JSON",
        "REST",
    ),
    *(
        "YAML",
        "NaN",
        "Python",
        "torch",
        "Ctrl",
        "Alt",
        "step",
        "loss",
        "host",
        "FedProx",
        "FedAvg",
        "API docs",
    ),
)
SAME = re.compile(rf"^\W*(?:(?:{'|'.join(_NAMES)})\W*)+$")
# What a field's placeholder shows as an example, and what stands in a field already.
EXAMPLES = {
    *(
        "ada, bob",
        "Ana",
        "ana",
        "ana,Ana Costa,submitter,2",
        "claude",
        "clinic-b",
        "default",
        "digits",
        "HF_TOKEN",
    ),
    *("https://github.com/lab/code.git", "hf://datasets/stanfordnlp/imdb", "jupyter", "laptop", "lr", "main"),
    *(
        "pandas, matplotlib",
        "paper-x",
        "params minimize",
        "pool default",
        "shakespeare",
        "token",
        "torchmetrics, scipy",
    ),
    *("/data/shakespeare.txt shakespeare.txt", "train.py:build_model", "train/loss - val/loss", "val/loss"),
    *("berth shell", "--image", 'class="jobs-page"'),
    "username,name,role,max_devices&#10;ana,Ana Costa,submitter,2",
    "lr: {type: float, low: 1.0e-5, high: 0.1, log: true}\noptimizer: [adam, sgd]\n"
    "momentum: {type: float, low: 0, high: 0.99, when: {optimizer: sgd}}",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY / "templates"))


@pytest.mark.parametrize("path", TEMPLATES, ids=name_of)
def test_every_text_of_a_template_is_marked(path: Path):
    if name_of(path) in NOT_OURS:
        return
    assert [
        text for text in unmarked_in_template(path) if text not in EXAMPLES and not SAME.match(text)
    ] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=name_of)
def test_every_mark_of_a_template_has_its_german(path: Path):
    assert sorted(text for text in marked_in_template(path) if not GERMAN.get(text)) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_mark_of_a_module_has_its_german(path: Path):
    assert sorted(text for text in marked_in_module(path) if not GERMAN.get(text)) == []


@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.name)
def test_a_style_sheet_writes_no_words_of_its_own(path: Path):
    """Words come from attributes, which a template translates."""
    contents = re.findall(r"\bcontent:([^;}]*)", path.read_text())
    quoted = [text for content in contents for text in re.findall(r'"([^"]*)"', content)]

    assert [text for text in quoted if re.search("[A-Za-z]", text)] == []


# Words that once stood beside the one that all texts use: abschicken, Besitzer, Supervisor, Admin, Kurven.
OTHER_WORDS = re.compile(r"einreich|eingereicht|Eigentümer|Aufseher|Administration|Diagramm", re.IGNORECASE)


def test_one_thing_has_one_german_word():
    told = [*GERMAN.values(), *SCRIPTS.values()]

    assert [german for german in told if OTHER_WORDS.search(german)] == []


def test_a_failure_that_waits_for_its_retry_is_not_called_a_pause():
    assert "paus" not in GERMAN["backoff"].lower()


@pytest.mark.parametrize("state", [*JobState, *AttemptState])
def test_a_state_has_one_german_word_wherever_it_stands(state: str):
    """By its code, in words, and in scripts."""
    words = {GERMAN.get(state), GERMAN.get(state.replace("_", " ")), SCRIPTS.get(state, GERMAN.get(state))}

    assert len(words) == 1
    assert None not in words


def values_of(text: str) -> set[str]:
    """Names in braces, and those of templates in brackets behind a percent sign."""
    named = set(re.findall(r"%\((\w+)\)s", text))
    try:
        return named | {name for _, name, _, _ in string.Formatter().parse(text) if name}
    except ValueError:  # braces that belong to the text
        return named


def test_a_translation_has_the_values_and_the_forms_of_its_english():
    wrong = [
        english
        for english, german in GERMAN.items()
        if english.count("\0") != german.count("\0") or values_of(english) != values_of(german)
    ]

    assert wrong == []
