"""Errors in the language of a page's reader."""

from orchestrator.sentences.errors import messages_of, said, sentence_of

__all__ = ["messages_of", "said", "sentence_of"]
