"""Errors in the language of their reader; programs with a token, commands and logs have them in English."""

from typing import Any

from django.utils.translation import gettext

from orchestrator.exceptions import OrchestratorError, Sentence


def said(text: str) -> str:
    """A text of an error in the reader's language; one that has no translation, or is another program's, as it is."""
    if isinstance(text, Sentence):
        return gettext(text.template).format(**{name: _part(value) for name, value in text.values.items()})
    return gettext(text) if text else text


def _part(value: Any) -> Any:
    """A value as it stands in a sentence: words in the reader's language, names and numbers as they are."""
    return said(value) if isinstance(value, Sentence) or (isinstance(value, str) and " " in value) else value


def sentence_of(error: Exception) -> str:
    first = error.args[0] if error.args else None
    return said(first if isinstance(first, Sentence) else str(error))


def messages_of(error: OrchestratorError, place: str = "") -> dict[str, list[str]]:
    """What an error says of each field; one that names none has its sentence at ``place``."""
    if not error.fields:
        return {place: [sentence_of(error)]}
    return {name: [said(text) for text in texts] for name, texts in error.fields.items()}
