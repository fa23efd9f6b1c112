"""What pages say: the texts of templates and of their modules that are marked for translation, and what is not marked."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from django.utils.translation.template import templatize

MARKS = {"_", "gettext", "gettext_lazy", "text"}
PLURALS = {"ngettext", "ngettext_lazy", "plural_text"}
_CALL = re.compile(r"\b(n?p?gettext)\(")
_SAID_BY_ATTRIBUTES = re.compile(
    r'\b(?:aria-label|title|placeholder|alt|label|data-title|aria-description)="([^"]*)"'
)
_NOT_TEXT = re.compile(
    r"\{#.*?#\}|\{% comment.*?endcomment %\}|<script.*?</script>|<style.*?</style>|<svg.*?</svg>"
    r"|<(?:code|kbd|pre|samp)\b.*?</(?:code|kbd|pre|samp)>"
    r"|\{% blocktranslate.*?endblocktranslate %\}",
    re.DOTALL,
)
_TAG = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
_MARKUP = re.compile(r"<!--.*?-->|<[^<>]*>|&\w+;", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]{2,}")


def marked_in_template(path: Path) -> set[str]:
    """The texts of a template's marks, as the catalog has them."""
    source = templatize(path.read_text(), origin=str(path))
    found = set()
    for hit in _CALL.finditer(source):
        call = ast.parse(source[hit.start() : _end_of_call(source, hit.end())].strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        strings = [
            node.value for node in call.args if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        context = f"{strings.pop(0)}\4" if "pgettext" in hit[1] else ""
        found.add(context + "\0".join(strings))
    return found


def _end_of_call(source: str, start: int) -> int:
    """Past the bracket that closes a call, whose brackets may stand in its strings."""
    quote = ""
    position = start
    while True:
        letter = source[position]
        if quote:
            position += letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == ")":
            return position + 1
        position += 1


def unmarked_in_template(path: Path) -> Iterator[str]:
    """Words that a person would read in English whatever the language of the page."""
    text = _NOT_TEXT.sub(" ", path.read_text())
    without_tags = _TAG.sub(" ", text)
    for value in _SAID_BY_ATTRIBUTES.findall(without_tags):
        if _WORD.search(value):
            yield value.strip()
    for line in _MARKUP.sub("\n", without_tags).splitlines():
        if _WORD.search(line):
            yield line.strip()


def marked_in_module(path: Path) -> set[str]:
    """The texts of a module's calls of gettext and of ``berth.shared.language``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        strings = [
            part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        if node.func.id in MARKS and strings:
            found.add(strings[0])
        elif node.func.id in PLURALS and len(strings) > 1:
            found.add("\0".join(strings[:2]))
    return found
