"""The line of a log in which a program that is no Python script, or that ended itself, says what is wrong."""

import re

_MOST_LINES = 8  # from the end; some say how to get help below
_LONGEST = 300
_COMPLAINS = re.compile(
    r"^\W{0,40}[A-Za-z.]{0,60}errors?\b|\b[A-Za-z.]{0,60}errors?(?:\[\w{1,20}\])?\s{0,3}:|\b(?-i:ERROR)\b"  # "Using error feedback" is no complaint
    r"|\b(?:fatal|panic|failed|failure|not found|no such|cannot|can't|could not|couldn't|unable to|invalid|missing"
    r"|denied|refused|unknown|unrecogni[sz]ed|is required|not allowed|does not exist|no rule to make)\b",
    re.IGNORECASE,
)
_WARNS = re.compile(r"warning|\bwarn\b", re.IGNORECASE)  # what a program goes on after
_MEASURED = re.compile(r"\berrors?\b\W{0,4}[\d.]", re.IGNORECASE)  # "val error: 0.3"
_OF_TRAINING = re.compile(r"\b(?:epoch|step|iter(?:ation)?|loss|batch)\b[^\n]{0,20}\d", re.IGNORECASE)
_DECORATION = re.compile(r"^[\s\u2500-\u257f|*>-]+|[\s\u2500-\u257f|]+$")  # boxes of typer
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_WORD = re.compile(r"[^\W\d_]{2}")


def last_complaint(text: str) -> str:
    """The last line that complains; empty if the training went on below it, or no line does."""
    lines = [line for line in map(_plain, text.splitlines()[-3 * _MOST_LINES :]) if _WORD.search(line)]
    for line in reversed(lines[-_MOST_LINES:]):
        if _OF_TRAINING.search(line):
            return ""
        if line.lower() != "error" and _COMPLAINS.search(line) and not _passes_on(line):
            return line
    return ""


def _passes_on(line: str) -> bool:
    return (_WARNS.search(line) or _MEASURED.search(line)) is not None


def _plain(line: str) -> str:
    return _DECORATION.sub("", _COLOURS.sub("", line[: 2 * _LONGEST]))[:_LONGEST]
