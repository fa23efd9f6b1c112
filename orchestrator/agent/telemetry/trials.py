"""The lines that Optuna prints when a trial ends: "Trial 3 finished with value: 0.91 and parameters: {...}"."""

import re

from orchestrator.agent.telemetry.layouts import Field, Kind, Layout, Slot

MOST_OBJECTIVES = 16
HINT = "trial"
_TRIAL = re.compile(r"\b(?:Trial |Finished trial#)$")
_VALUE = re.compile(r" (?:finished|resulted in|with)(?: with)? values?: (\[?)")
_BEST = re.compile(r"\. Best is trial[ #]$")
_BEST_VALUE = re.compile(r" with value: ")


def read_trial(texts: tuple[str, ...]) -> Layout | None:
    """The meaning of a line that ends a trial: the step is the trial, its parameters are no metrics."""
    for at, text in enumerate(texts[:-2]):
        if _TRIAL.search(text[-40:]) is not None:
            opened = _VALUE.fullmatch(texts[at + 1])
            break
    else:
        return None
    if opened is None:
        return None
    fields = _objectives(texts, at + 1) if opened[1] else [Field(at + 1, "value")]
    for best in range(at + 2, len(texts) - 2):
        if _BEST.search(texts[best][-40:]) is not None and _BEST_VALUE.fullmatch(texts[best + 1]) is not None:
            fields.append(Field(best + 1, "best_value"))
            break
    return Layout(Kind.TRIAL, tuple(fields), Slot(at, None))


def _objectives(texts: tuple[str, ...], first: int) -> list[Field]:
    """The values of a study with several objectives: "[0.91, 12.5]"."""
    fields: list[Field] = []
    for at in range(first, min(first + MOST_OBJECTIVES, len(texts) - 1)):
        fields.append(Field(at, f"value_{len(fields)}"))
        if texts[at + 1] != ", ":
            break
    return fields
