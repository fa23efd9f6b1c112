"""What a log says at its end of why a program ended itself: its last complaint, or its last words."""

import re

from orchestrator.supervisor.verdict.command_logs import OF_LAUNCHER, OF_TRAINING, last_raised
from orchestrator.supervisor.verdict.rank_reports import RankError

_MOST_CHARS = 400  # of the last line
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
_COUNTS = re.compile(rf"{OF_TRAINING.pattern}[^\n]{{0,20}}\d", re.IGNORECASE)
_DECORATION = re.compile(r"^[\s\u2500-\u257f|*>-]+|[\s\u2500-\u257f|]+$")  # boxes of typer
_COLOURS = re.compile(r"\x1b\[[0-9;:?]{0,64}[A-Za-z]")
_NUMBERS = re.compile(r"\d[\d.]{0,40}")
_WORD = re.compile(r"[^\W\d_]{2}")

# Hydra's hint, and a warning of Python's with its line of code.
_ADDS_NOTHING = re.compile(
    rf"{OF_LAUNCHER.pattern}|Set the environment variable HYDRA_FULL_ERROR=1 "
    r"|[^\n]{0,400}:\d{1,9}: \w{0,60}Warning: |\s{1,40}warnings\.warn\(",
    re.IGNORECASE,
)
# Words of lines that tell of the end alone: "Training failed, see the error above", "[INFO] - Exiting with code 1".
_WORDS_OF_ENDS = (
    "error errors info warning critical fatal debug root main __main__ exception traceback "
    "training train script program process job run worker group "
    "exit exits exiting exited quit quitting abort aborting aborted stop stopping stopped terminate terminating terminated "
    "fail failed failing failure failures crashed done finished end ended bye goodbye "
    "clean cleaning cleanup close closing destroy destroying shut shutting shutdown down up "
    "save saving saved checkpoint model state log logs details "
    "code status with by on at of to in the a an is was and for due because before after above see now please"
)
_OF_ENDS = frozenset(_WORDS_OF_ENDS.split())
_LETTERS = re.compile(r"[^\W\d]+")
_LONGEST_END_CHARS = 200
_MOST_BEHIND_CHARS = 200  # after the last exception of a finished run: "exiting", "done"
_NUMBERS_ALONE = re.compile(r"^[^\w\n]*\d[\d\W]*$", re.MULTILINE)


def last_complaint(text: str) -> str:
    """The last line that complains; empty if the training went on below it, or no line does."""
    lines = [line for line in map(_plain, text.splitlines()[-3 * _MOST_LINES :]) if _WORD.search(line)]
    for line in reversed(lines[-_MOST_LINES:]):
        if _COUNTS.search(line):
            return ""
        if line.lower() != "error" and _COMPLAINS.search(line) and not _passes_on(line):
            return line
    return ""


def _passes_on(line: str) -> bool:
    return (_WARNS.search(line) or _MEASURED.search(line)) is not None


def _plain(line: str) -> str:
    return _DECORATION.sub("", _COLOURS.sub("", line[: 2 * _LONGEST]))[:_LONGEST]


def adds_nothing(behind: str) -> bool:
    """Whether the text behind an exception leaves it the end: bars, what libraries write, "Training failed"."""
    lines = _COLOURS.sub("", behind).splitlines()
    return all(_ADDS_NOTHING.match(line) or _tells_of_end_alone(line) for line in lines)


def last_printed(text: str) -> RankError | None:
    """The exception with which a log ends, although its script went on: it was caught and printed, or ended a thread.

    Not one that Python ignored while it cleaned up, nor one that the script handled: it printed other things after it.
    """
    last, behind = last_raised(text)
    is_end = len(behind) <= _MOST_BEHIND_CHARS and adds_nothing(behind) and not _NUMBERS_ALONE.search(behind)
    return last if is_end else None


def _tells_of_end_alone(line: str) -> bool:
    return len(line) <= _LONGEST_END_CHARS and _OF_ENDS.issuperset(_LETTERS.findall(line.lower()))


def last_words(text: str) -> str:
    """The last line of a log without colours; empty if that is a bar or has the numbers of a training."""
    line = _COLOURS.sub("", text.rstrip().rpartition("\n")[2]).rpartition("\r")[2].strip()
    if not line.isprintable() or not any(map(str.isalpha, line)) or "%|" in line:
        return ""
    is_of_training = OF_TRAINING.search(line) is not None and len(_NUMBERS.findall(line)) > 1
    return "" if is_of_training else line[:_MOST_CHARS]
