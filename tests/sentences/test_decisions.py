"""No product code decides by a sentence: a better wording must never change behaviour."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("berth", "orchestrator", "dashboard", "training")
SENTENCES = frozenset(
    {"sentence", "exit_detail", "wait_sentence"}
)  # attributes that hold a sentence and nothing else
PERHAPS = SENTENCES | {"reason", "detail"}  # these hold a code in some rooms
MAKERS = frozenset({"say", "say_json", "say_wait", "wait_sentence"})
TESTS_OF_TEXT = frozenset(
    {"startswith", "endswith", "find", "index", "partition", "rpartition", "split", "rsplit", "removeprefix"}
    | {"removesuffix", "count", "replace", "strip"}
)
PATTERNS = frozenset({"match", "fullmatch", "search", "findall", "finditer", "sub"})
LOOKUP = re.compile(
    r"(?:^|__)(?:reason|sentence|detail|exit_detail)__(?:i?startswith|i?endswith|i?contains|i?regex|i?exact|in)$"
)
ALLOWED = {
    # The sentences of two answers are put beside each other; none is left out by what it means.
    ("dashboard/pages/rest_form.py", "text not in detail"),
    # Fields of a message are called as the command line calls them.
    (
        "training/multi_gpu/settings.py",
        r"re.sub('\\b\\w+\\b', lambda word: names.get(word[0], word[0]), sentence)",
    ),
}


def decisions(source: str) -> Iterator[str]:
    """The pieces of a program that look into a sentence."""
    for node in ast.walk(ast.parse(source)):
        if _decides(node):
            yield ast.unparse(node)


def _decides(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in TESTS_OF_TEXT:
            return _holds_sentence(value, PERHAPS)
        case ast.Call(func=ast.Attribute(attr=name), args=args) if name in PATTERNS:
            return any(_holds_sentence(each, PERHAPS) for each in args)
        case ast.Compare(left=left, ops=ops, comparators=[right]):
            if isinstance(ops[0], ast.In | ast.NotIn) and _holds_sentence(right, PERHAPS):
                return True
            sides = (left, right)
            if any(_holds_sentence(each, SENTENCES) for each in sides):
                return True
            return any(_holds_sentence(each, PERHAPS) for each in sides) and any(map(_is_prose, sides))
        case ast.keyword(arg=str(name)):
            return LOOKUP.search(name) is not None
    return False


def _holds_sentence(node: ast.expr, names: frozenset[str]) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in names
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in MAKERS
        case ast.Subscript(value=_, slice=ast.Constant(value=str(name))):
            return name in names
        case ast.Subscript(value=value):
            return _holds_sentence(value, names)
    return False


def _is_prose(node: ast.expr) -> bool:
    """A text with a space is a sentence; a code has none."""
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(map(_is_prose, node.elts))
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    )


def test_no_product_code_decides_by_a_sentence():
    found = [
        (str(path.relative_to(ROOT)), piece)
        for top in PRODUCT
        for path in sorted((ROOT / top).rglob("*.py"))
        if "migrations" not in path.parts
        for piece in decisions(path.read_text())
    ]

    assert [each for each in found if each not in ALLOWED] == []


@pytest.mark.parametrize(
    "source",
    [
        'job.reason.startswith("Fell back")',
        'events.filter(reason__startswith="loss became")',
        'JobEvent.objects.filter(event__reason__contains=" to the beginning: ")',
        'if job.explanation.sentence != "Waits for the scheduler.": pass',
        'if "damaged" in event.reason: pass',
        'if event.reason in ("Finished.", "Attempt 1 runs."): pass',
        'detail.partition(": ")',
        "if say(fact) == other: pass",
        '_FORETOLD.sub("", job.wait_sentence)',
        'answer["detail"].split(";")',
    ],
)
def test_a_look_into_a_sentence_is_found(source):
    assert list(decisions(source))


@pytest.mark.parametrize(
    "source",
    [
        'order.reason == "preempt"',
        'answer.reason != "not_before"',
        "event.kind == Happened.FELL_BACK",
        'why = "" if adds_nothing(event) else event.reason',
        "if job.exit_detail: pass",
    ],
)
def test_a_look_at_a_code_is_allowed(source):
    assert not list(decisions(source))
