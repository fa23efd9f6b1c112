"""The fold of a cross-validation, within which epochs start again: "Fold 2/5", "Fold 2, Epoch 1: loss 0.5"."""

import re
from dataclasses import replace

from orchestrator.agent.telemetry.layouts import Kind, Layout, Slot

HINT = "fold"
_FOLD = re.compile(r"(?<![\w/.-])(?:k-?)?fold\s{0,2}[:#=]?\s{0,2}[\[(]?$", re.IGNORECASE)
_OF = re.compile(r"\s{0,2}/\s{0,2}|\s(?:of|von)\s")
_WITH_FOLD = frozenset({Kind.PROGRESS, Kind.BAR, Kind.KERAS_BAR})


def with_fold(layout: Layout | None, texts: tuple[str, ...]) -> Layout | None:
    """The meaning of a line with its fold; a line that means nothing else may announce one."""
    if layout is not None and layout.kind not in _WITH_FOLD:
        return layout
    at = next((at for at, text in enumerate(texts[:-1]) if _FOLD.search(text[-20:]) is not None), None)
    if at is None:
        return layout
    fold = Slot(at, at + 1 if at + 2 < len(texts) and _OF.fullmatch(texts[at + 1]) else None)
    return replace(layout or Layout(Kind.FOLD), fold=fold)
