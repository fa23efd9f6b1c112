"""The language of sentences: English, until the server's pages put their reader's in."""

from collections.abc import Callable


def _english(one: str, many: str, count: int) -> str:
    return one if count == 1 else many


_translate: Callable[[str], str] = str
_translate_plural: Callable[[str, str, int], str] = _english


def speak_with(translate: Callable[[str], str], translate_plural: Callable[[str, str, int], str]) -> None:
    """Let these two, gettext's and ngettext's, find the words of every text from now on."""
    global _translate, _translate_plural
    _translate, _translate_plural = translate, translate_plural


def text(template: str, /, **values: object) -> str:
    """A text in the reader's language, with its values where their names stand in braces."""
    words = _translate(template) if template else ""  # gettext has its catalog's header under the empty text
    return words.format(**values) if values else words


def plural_text(one: str, many: str, count: int, /, **values: object) -> str:
    """The one of two texts that fits a number, which stands in it as ``count``."""
    return _translate_plural(one, many, count).format(count=count, **values)
