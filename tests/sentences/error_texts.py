"""The texts of errors in the source of a module: what a page says in its reader's language, and what it cannot."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.system.server import REPOSITORY

# Whose errors stand in a form or beside its fields.
ERRORS = frozenset(
    {
        *("OrchestratorError", "Malformed", "Impossible", "TooLarge", "Forbidden", "NotFound", "Conflict"),
        *("TooMany", "Unavailable", "WrongSpace", "_Unreadable", "ValueError"),
        *("TurnedAway", "WrongAddress", "WrongName", "Smuggled"),  # pages of the sessions' port
    }
)
SENTENCE = "Sentence"
PAGES_SAY = frozenset({"said", "wrong"})  # what a page adds to a form by itself
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Text(NamedTuple):
    """One text of an error.

    Attributes:
        template: its words with the names of its values; None where values were put in before anybody could say it.
    """

    place: str
    template: str | None


def texts_in(path: Path) -> set[Text]:
    """Every text of an error that a module makes; names of fields, which have no space, are none."""
    tree = ast.parse(path.read_text())
    makers = ERRORS | {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, Function) and node.returns and _names(node.returns) & ERRORS
    }
    found: set[Text] = set()
    for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, Function))]:
        assigned = {} if function is tree else _assigned(function)
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if _name(call.func) == SENTENCE:
                found |= {_text(path, node) for node in _parts(call.args[0], {})}
            elif _name(call.func) in makers | PAGES_SAY:
                found |= {_text(path, node) for given in _given(call) for node in _parts(given, assigned)}
    return {text for text in found if text.template is None or " " in text.template.strip()}


def _given(call: ast.Call) -> Iterator[ast.expr]:
    """What a call puts into an error: its own sentence, and those of its fields."""
    yield from call.args
    for keyword in call.keywords:
        if keyword.arg == "fields" and isinstance(keyword.value, ast.Dict):
            lists = (each for each in keyword.value.values if isinstance(each, ast.List))
            yield from (text for each in lists for text in each.elts)


def _parts(node: ast.expr, assigned: dict[str, list[ast.expr]]) -> Iterator[ast.expr]:
    """The texts that an expression may become."""
    match node:
        case ast.IfExp():
            yield from _parts(node.body, assigned)
            yield from _parts(node.orelse, assigned)
        case ast.Name(id=name):
            for value in assigned.get(name, []):
                yield from _parts(value, {})
        case ast.Constant(value=str()) | ast.JoinedStr():
            yield node


def _text(path: Path, node: ast.expr) -> Text:
    place = f"{path.relative_to(REPOSITORY)}:{node.lineno}"
    return Text(place, node.value if isinstance(node, ast.Constant) else None)  # type: ignore[arg-type]


def _assigned(function: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _names(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
