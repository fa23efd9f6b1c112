"""Errors in German: every text of a form's error has its translation, with the same values, and pages say it."""

import pickle
import string
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import translation
from django.utils.html import escape

from deploy.translations import (
    LANGUAGES,
    SCRIPTS,
    catalog,
    compile_catalog,
    compiled,
    for_scripts,
    read,
    script_of,
)
from orchestrator.exceptions import Conflict, Malformed, Sentence
from orchestrator.people import tokens
from orchestrator.sentences.errors import messages_of, said, sentence_of
from orchestrator.sweeps.core.space import WrongSpace
from tests.sentences.error_texts import texts_in
from tests.system.server import REPOSITORY

# Rooms whose errors carry their sentence; a room that is converted is added here.
CONVERTED = (
    "dashboard/live/polling.py",
    "dashboard/pages",
    "dashboard/parts",
    "orchestrator/api",
    "orchestrator/exceptions.py",
    "orchestrator/federations",
    "orchestrator/jobs/checkpoints.py",
    "orchestrator/jobs/dataset_files.py",
    "orchestrator/jobs/datasets.py",
    "orchestrator/jobs/drains.py",
    "orchestrator/jobs/environments",
    "orchestrator/jobs/example.py",
    "orchestrator/jobs/fetches.py",
    "orchestrator/jobs/kept_files.py",
    "orchestrator/jobs/launch/isolation.py",
    "orchestrator/jobs/launch/refusals.py",
    "orchestrator/jobs/lifecycle",
    "orchestrator/jobs/profiles.py",
    "orchestrator/jobs/promotion.py",
    "orchestrator/jobs/pushing.py",
    "orchestrator/jobs/results.py",
    "orchestrator/jobs/retention.py",
    "orchestrator/jobs/shells.py",
    "orchestrator/jobs/shelves.py",
    "orchestrator/jobs/steering.py",
    "orchestrator/jobs/submission",
    "orchestrator/people",
    "orchestrator/recipes",
    "orchestrator/scheduler/calendar.py",
    "orchestrator/scheduler/forecast/replays.py",
    "orchestrator/scheduler/owner_order.py",
    "orchestrator/services",
    "orchestrator/sessions",
    "orchestrator/sharing",
    "orchestrator/spec",
    "orchestrator/store/bundles",
    "orchestrator/store/logs/search.py",
    "orchestrator/sweeps",
)
MODULES = [
    path for room in CONVERTED for path in (sorted((REPOSITORY / room).rglob("*.py")) or [REPOSITORY / room])
]
GERMAN = catalog(REPOSITORY / "orchestrator/locale/de")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_error_of_a_converted_room_can_be_said_in_german(path: Path):
    texts = texts_in(path)

    assert not sorted(text.place for text in texts if text.template is None), (
        "values stand in the text already; give them to Sentence by name"
    )
    assert not sorted(text for text in texts if not in_german(text.template or "")), "not in the catalog"


def in_german(template: str) -> str | None:
    """The translation of a text; what names a field before a colon is shown without it, beside that field."""
    rest = template.partition(": ")[2]
    return GERMAN.get(template) or (GERMAN.get(rest) if rest else None)


def values_of(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name}
    except ValueError:  # braces that belong to the text, of a sentence without values
        return set()


def test_a_translation_has_the_values_of_its_english():
    wrong = [english for english, german in GERMAN.items() if values_of(english) != values_of(german)]

    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda path: path.name)
def test_what_programs_read_is_made_of_the_catalogs_that_people_write(language: Path):
    again = "run python -m deploy.translations"

    assert compiled(language).read_bytes() == compile_catalog(catalog(language)), again
    assert for_scripts(language).read_text() == script_of(read(language / SCRIPTS)), again


def test_a_sentence_is_its_english_text_wherever_nobody_translates_it():
    sentence = Sentence("Pool {pool} has {count:,} devices.", pool="a100", count=1200)

    assert sentence == "Pool a100 has 1,200 devices."
    assert str(Conflict(sentence)) == sentence
    copy = pickle.loads(pickle.dumps(sentence))  # noqa: S301  # our own
    assert (copy, copy.template, copy.values) == (sentence, sentence.template, sentence.values)


def test_a_page_says_a_sentence_and_the_sentences_within_it_in_german():
    has = Sentence("only {count} devices", count=2)
    error = Malformed(
        Sentence("The space cannot be searched: {error}", error=WrongSpace("lr", "is given twice")),
        fields={
            "gpus": [
                Sentence("Pool {pool} has {has}; {least} were asked for.", pool="a100", has=has, least=4)
            ]
        },
    )

    with translation.override("de"):
        assert sentence_of(error) == "Der Suchraum lässt sich nicht durchsuchen: lr: ist zweimal angegeben"
        assert messages_of(error) == {"gpus": ["Pool a100 hat nur 2 Geräte; verlangt sind 4."]}
    assert sentence_of(error) == "The space cannot be searched: lr: is given twice"


def test_what_has_no_translation_is_said_as_it_is():
    with translation.override("de"):
        assert said("the GPU said {this}") == "the GPU said {this}"
        assert said("") == ""
        assert said(Sentence("nobody has translated {this}", this=1)) == "nobody has translated 1"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("form", "page", "rest"),
    [
        (
            {"pool": "moon"},
            "Es gibt keinen Pool &#x27;moon&#x27;; bekannt: default.",
            "There is no pool 'moon'",
        ),
        ({"gpus": "64"}, "Pool default hat 1 Gerät; verlangt sind 64.", "Pool default has 1 device; 64 were"),
        ({"time_limit_h": "soon"}, "&#x27;soon&#x27; ist weder eine Zahl in hours noch eine Dauer", ""),
    ],
)
def test_forms_and_a_pages_own_rest_say_errors_in_german_and_programs_hear_english(
    home, client, ada, make_device, form, page, rest
):
    make_device()
    client.force_login(ada)
    client.cookies["berth_language"] = "de"

    shown = client.post("/submit", form).content.decode()
    body = {
        "source": {"text": "print(1)"},
        **{name: int(text) if text.isdecimal() else text for name, text in form.items()},
    }
    told_a_page = client.post("/api/v1/jobs", body, content_type="application/json").json()["detail"]
    token = {"Authorization": f"Token {tokens.issue(ada, name='a program')[1]}", "Accept-Language": "de"}
    told = client.post("/api/v1/jobs", body, content_type="application/json", headers=token).json()["detail"]

    assert page in shown
    assert page in escape(told_a_page) or not rest
    assert rest in told


@pytest.mark.django_db
def test_a_plain_form_over_rest_says_its_errors_in_german(home, client, root, make_pool):
    make_pool("a100")
    client.force_login(root)

    client.cookies["berth_language"] = "de"

    answer = client.post(
        "/change", {"do": "POST /api/v1/pools", "name": "a100"}, headers={"X-Requested-With": "fetch"}
    )

    assert answer.json()["detail"].startswith("Einen Pool a100 gibt es schon. Einen anderen Namen wählen.")


@pytest.mark.django_db
def test_the_form_of_a_service_says_its_errors_in_german(home, client, ada, make_device):
    make_device()
    client.force_login(ada)
    form = {"name": "echo", "command": "python serve.py", "gpus": "64", "pool": "default"}

    client.cookies["berth_language"] = "de"
    code = SimpleUploadedFile("serve.py", b"print('it answers')\n")
    shown = client.post("/new-service", {**form, "file": code}).content.decode()

    assert "Pool default hat 1 Gerät; verlangt sind 64." in shown
