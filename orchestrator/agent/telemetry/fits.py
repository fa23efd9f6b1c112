"""The lines that scikit-learn prints when a fit of a search ends: "[CV 1/3] END ...C=0.1;, score=0.93 total time= 0.1s"."""

import re

from orchestrator.agent.telemetry.layouts import Field, Kind, Layout
from orchestrator.agent.telemetry.tokens import NUMBER

HINT = "[cv"
MOST_SCORES = 64
_STARTS = re.compile(rf"\[CV(?: {NUMBER}/{NUMBER}(?:; {NUMBER}/{NUMBER})?)?\] END ")
_SCORE = re.compile(r"(?:^|[ ,;)])([A-Za-z_]\w{0,60})(?:=|: )(?:\((train|test)=)?$")
_OTHER_PART = re.compile(r", (train|test)=$")
_BEFORE_TIME = "total time="


def read_fit(texts: tuple[str, ...], whole: str) -> Layout | None:
    """The meaning of a line that ends a fit: its scores; the parameters before them are no metrics."""
    if not whole.startswith("[CV") or _BEFORE_TIME not in texts[-2] or not _STARTS.match(whole):
        return None
    fields: list[Field] = []
    metric, behind_parameters = "", False
    for at, text in enumerate(texts[:-2][:MOST_SCORES]):
        parameters, separator, rest = text.rpartition(";,")
        behind_parameters = behind_parameters or bool(separator) or "...." in parameters + rest
        if not behind_parameters:
            continue
        if other := _OTHER_PART.search(text):
            fields.append(Field(at, f"{other[1]}_{metric}"))
        elif score := _SCORE.search(rest[-80:]):
            metric = score[1]
            fields.append(Field(at, f"{score[2]}_{metric}" if score[2] else metric))
    return Layout(Kind.VALUES, tuple(fields), printed_dict=True) if fields else Layout(Kind.FOLD)
