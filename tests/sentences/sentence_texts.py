"""The texts of sentences in the source of a module: all that ``berth.shared.language`` is asked for, and their tables."""

import ast
from collections.abc import Iterator
from pathlib import Path

TEXT, PLURAL = frozenset({"text", "say"}), frozenset({"plural_text"})


def texts_in(path: Path) -> set[str]:
    """Every text that a module says, a plural's both forms with a NUL between them, as in the catalog."""
    said = said_in(path)
    in_plurals = {part for text in said if "\0" in text for part in text.split("\0")}
    return said | (_sentences(ast.parse(path.read_text())) - in_plurals)


def said_in(path: Path) -> set[str]:
    """What a module gives to ``text`` and ``plural_text`` as it stands there."""
    tree = ast.parse(path.read_text())
    plurals = {
        "\0".join(str(form.value) for form in call.args[:2] if isinstance(form, ast.Constant))
        for call in _calls(tree, PLURAL)
    }
    of_calls = {
        call.args[0].value
        for call in _calls(tree, TEXT)
        if isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }
    return plurals | of_calls


def _calls(tree: ast.AST, names: frozenset[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def _sentences(tree: ast.AST) -> set[str]:
    """What has words in it, wherever it stands: a piece of a sentence outside of a text would stay English."""
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
        if any(letter.isalpha() for letter in node.value) and " " in node.value.strip()
    }
