"""The sentence for any fact: this module knows the words of all codes."""

from orchestrator.sentences import endings, events, remarks, unsupervised
from orchestrator.sentences.table import TABLE, say, say_json

__all__ = ["TABLE", "endings", "events", "remarks", "say", "say_json", "unsupervised"]
