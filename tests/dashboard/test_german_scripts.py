"""The pages' scripts in German: what they say is in their catalog, and they say nothing past it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.translations import SCRIPTS, read
from orchestrator.agent.telemetry.progress import EPOCH, PERCENT, SAMPLE, STEP
from orchestrator.models import JobState
from orchestrator.sweeps.core.history import TrialState
from tests.system.server import REPOSITORY

MODULES = sorted(
    path for path in (REPOSITORY / "static/js").glob("*.js") if not path.name.startswith("words-")
)
GERMAN = read(REPOSITORY / "orchestrator/locale/de" / SCRIPTS)
# What scripts say of what the server sends: sayState(row.state), say(row.unit), say(row.alarm).
SENT = {
    *(STEP, SAMPLE, EPOCH, PERCENT),
    *(state.replace("_", " ") for state in (*JobState.values, *TrialState)),
    "has a loss that is no number",
    "has reported nothing for 10 min",
}
TOKEN = re.compile(
    r"""
    (?P<skipped> //[^\n]* | (?<=[(=,:\[!&|?{};\s]) /(?![/*\s]) (?:\\. | \[(?:\\.|[^\]\\\n])*\] | [^/\\\n\[])+ /[a-z]* )
    | (?P<text> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | `(?:\\.|[^`\\])*` )
    | (?P<say> (?<![\w.]) say\( )
    | (?P<open> [(\[{] ) | (?P<close> [)\]}] ) | (?P<comma> , )
    """,
    re.VERBOSE,
)
INSIDE = re.compile(r"\$\{((?:[^{}]|\{[^{}]*\})*)\}")  # what a template literal fills in
# What comes before a text that a person reads.
SHOWN = re.compile(
    r"""
    (?: \b(?:textContent|innerText|title|ariaLabel|placeholder|label|hint|alt|detail|unit) \s* [:=] [^;,\n]*
    | (?: \b(?:write|toast|soon|button|makeButton|openDialog|copyText|tell|Error|offerUndo) | \.text ) \( [^;\n]* ) $
    """,
    re.VERBOSE,
)
WORDS = re.compile(r"[A-Za-z]{2,}")
SENTENCE = re.compile(r"^[A-Z][a-z]+(?: |$)|^[a-z]{2,}(?: [a-z]{2,}){2,}|[a-z]\.$")
# Classes, elements and colours by their names, and what code compares.
NAMED = re.compile(
    r"(?:\bclassName(?::| =) |[=!]== |\b(?:by|make|part|closest|querySelector|querySelectorAll|colour|import)\()$"
)
# Looks of buttons, alignments, kinds: words that are nobody's to read; and names that are the same in all languages.
NOT_SAID = {
    *("is-plain", "is-plain copies", "is-main", "copies"),
    *("left", "right", "center", "text", "png", "svg"),
    *("train", "val", "Berth", " GiB"),
    *("Enter", "Escape", "Files", "UTC", "yes"),
    *("noopener noreferrer nofollow", "text/html", "en"),
}


@dataclass(frozen=True)
class Literal:
    text: str
    is_said: bool
    before: str  # on its line and the one above
    line: int


def literals(source: str) -> Iterator[Literal]:
    """All texts of a module, and whether each is one that ``say()`` translates."""
    depths: list[int] = []  # of each say() around, those whose first argument is not over yet
    depth = 0
    for token in TOKEN.finditer(source):
        if token["say"] or token["open"]:
            depth += 1
            if token["say"]:
                depths.append(depth)
        elif token["close"]:
            depths = [one for one in depths if one < depth]
            depth -= 1
        elif token["comma"]:
            depths = [one for one in depths if one != depth]
        elif token["text"]:
            line = source.rfind("\n", 0, token.start())
            before = source[source.rfind("\n", 0, max(0, line)) + 1 : token.start()]
            is_said = bool(depths) and not re.search(r"[=!]== $", before)
            yield Literal(token["text"][1:-1], is_said, before, source.count("\n", 0, token.start()) + 1)
            for part in INSIDE.findall(token["text"]) if token["text"].startswith("`") else ():
                yield from literals(part)


def said_in(path: Path) -> set[str]:
    return {literal.text for literal in literals(path.read_text()) if literal.is_said}


def values_of(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_everything_that_a_script_says_is_in_the_catalog(path: Path):
    assert sorted(said_in(path) - GERMAN.keys()) == []


def test_the_catalog_has_nothing_that_no_script_says():
    said = set().union(*(said_in(path) for path in MODULES))

    assert sorted(GERMAN.keys() - said - SENT) == []
    assert sorted(SENT - GERMAN.keys()) == []


def test_a_translation_has_the_values_of_its_english():
    wrong = [
        english for english, german in GERMAN.items() if not german or values_of(english) != values_of(german)
    ]

    assert wrong == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_script_shows_a_text_that_it_does_not_say(path: Path):
    past = [
        f"{path.name}:{literal.line}: {literal.text}"
        for literal in literals(path.read_text())
        if not literal.is_said and literal.text not in NOT_SAID and is_for_people(literal)
    ]

    assert past == [], "give it to say() of dom.js, or name it in NOT_SAID"


def is_for_people(literal: Literal) -> bool:
    text = INSIDE.sub("", literal.text)
    line = literal.before.rpartition("\n")[2]
    if NAMED.search(line):
        return False
    return bool(SENTENCE.search(text) or (WORDS.search(text) and SHOWN.search(line)))
