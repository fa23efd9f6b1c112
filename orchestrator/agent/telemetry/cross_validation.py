"""What a cross-validation prints: the fold within which epochs start again, and the fits of scikit-learn's searches."""

import re
from dataclasses import replace

from orchestrator.agent.telemetry.layouts import Field, Kind, Layout, Slot
from orchestrator.agent.telemetry.tokens import NUMBER

FOLD_HINT, FIT_HINT = "fold", "[cv"
MOST_SCORES = 64
# "Fold 2/5", "Fold 2, Epoch 1: loss 0.5"
_FOLD = re.compile(r"(?<![\w/.-])(?:k-?)?fold\s{0,2}[:#=]?\s{0,2}[\[(]?$", re.IGNORECASE)
_OF = re.compile(r"\s{0,2}/\s{0,2}|\s(?:of|von)\s")
_WITH_FOLD = frozenset({Kind.PROGRESS, Kind.BAR, Kind.KERAS_BAR})
# "[CV 1/3] END ...C=0.1;, score=0.93 total time= 0.1s"
_STARTS = re.compile(rf"\[CV(?: {NUMBER}/{NUMBER}(?:; {NUMBER}/{NUMBER})?)?\] END ")
_SCORE = re.compile(r"(?:^|[ ,;)])([A-Za-z_]\w{0,60})(?:=|: )(?:\((train|test)=)?$")
_OTHER_PART = re.compile(r", (train|test)=$")
_BEFORE_TIME = "total time="


def with_fold(layout: Layout | None, texts: tuple[str, ...]) -> Layout | None:
    """The meaning of a line with its fold; a line that means nothing else may announce one."""
    if layout is not None and layout.kind not in _WITH_FOLD:
        return layout
    at = next((at for at, text in enumerate(texts[:-1]) if _FOLD.search(text[-20:]) is not None), None)
    if at is None:
        return layout
    fold = Slot(at, at + 1 if at + 2 < len(texts) and _OF.fullmatch(texts[at + 1]) else None)
    return replace(layout or Layout(Kind.FOLD), fold=fold)


def read_fit(texts: tuple[str, ...], whole: str) -> Layout | None:
    """The meaning of a line that ends a fit: its scores; the parameters before them are no metrics."""
    if len(texts) < 2 or _BEFORE_TIME not in texts[-2] or not _STARTS.match(whole):
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
