"""Several trainings in one process, one after the other: stages, runs, seeds, trials."""

import re
from dataclasses import replace

from orchestrator.agent.telemetry.layouts import Kind, Layout, Slot
from orchestrator.agent.telemetry.log_prefixes import LOG_PREFIX
from orchestrator.agent.telemetry.tokens import NUMBER

HINTS = ("stage", "phase", "run ", "run:", "seed", "repe", "split ", "experiment", "task ", "model ")
_NAMES = r"(?:stage|phase|run|seed|repeat|repetition|split|trial|experiment|task)"
# "Stage 2: finetuning", "=== Run 2/5 ===", "Global seed set to 7", and no other number
_HEADING = re.compile(
    rf"\W{{0,40}}(?:[A-Za-z-]{{1,20}}:?\s){{0,3}}(?:{_NAMES}|model(?=\s{NUMBER}\s?(?:/|of)\s?{NUMBER}))(?:\sset\sto)?\s{{0,2}}[:#=]?\s{{0,2}}{NUMBER}"
    rf"(?:(?:\s{{0,2}}/\s{{0,2}}|\s(?:of|von)\s){NUMBER})?(?:\s?[:(\u2013-][^\x01]{{1,80}}|\W{{0,80}})",
    re.IGNORECASE,
)
# "Run 2, Epoch 1, loss 0.5"
_IN_LINE = re.compile(rf"(?<![\w/.-]){_NAMES}\s{{0,2}}[:#=]?\s{{0,2}}[\[(]?$", re.IGNORECASE)
# "Training complete in 1m 5s", "`Trainer.fit` stopped: `max_epochs=6` reached."; but Ray's "Training finished iteration 2"
_END = re.compile(
    r"\W{0,40}(?:(?:the )?training|trainer\.fit)\W{1,3}(?:is |was |has )?(?:stopped|completed?|finished|done|ended)\b"
    r"(?!\s(?:iteration|epoch|step|batch|it)\b)",
    re.IGNORECASE,
)
_WITH_TRAINING = frozenset({Kind.PROGRESS, Kind.BAR, Kind.KERAS_BAR, Kind.DRAWN_BAR})


def read_training(whole: str) -> Layout | None:
    """The meaning of a line that only names the training that begins."""
    start = _behind_prefix(whole)
    if _HEADING.fullmatch(whole, start) is None:
        return None
    return Layout(Kind.TRAINING, step=Slot(whole.count(NUMBER, 0, start), None))


def with_training(layout: Layout | None, texts: tuple[str, ...], whole: str) -> Layout | None:
    """The meaning of a line with the training that it names before its epoch, or whose end it tells."""
    if layout is None:
        return Layout(Kind.TRAINING) if _END.match(whole, _behind_prefix(whole)) is not None else None
    if layout.kind not in _WITH_TRAINING or layout.epoch is None:
        return layout
    before = texts[: layout.epoch.at]
    at = next((at for at, text in enumerate(before) if _IN_LINE.search(text[-24:]) is not None), None)
    return layout if at is None else replace(layout, training=Slot(at, None))


def _behind_prefix(whole: str) -> int:
    prefix = LOG_PREFIX.match(whole)
    return prefix.end() if prefix else 0
