"""The meaning of a line's shape."""

import re
from dataclasses import replace

from orchestrator.agent.telemetry.best import named_best, only_names_best, past_counts
from orchestrator.agent.telemetry.layouts import Field, Kind, Layout
from orchestrator.agent.telemetry.log_prefixes import LOG_PREFIX, PARTS_OF_A_RUN, without_logger
from orchestrator.agent.telemetry.numbers import numbers_of
from orchestrator.agent.telemetry.parts import in_part, parts_of
from orchestrator.agent.telemetry.roles import GLOBAL_RANK, ITERATION_RANK, Builder
from orchestrator.agent.telemetry.tokens import NUMBER
from orchestrator.agent.telemetry.unnamed_counts import read_start
from orchestrator.agent.telemetry.vocabulary import (
    EVALUATION,
    FOREIGN_COUNTS,
    LEFT_OUT,
    OFTEN_MEASURED,
    PARTS,
    TRAINING,
    is_failure,
    is_measure,
)

_CALL = re.compile(r"[A-Za-z_][\w.]{0,79}\(\w{1,79}=")
_NOISE = re.compile(
    r"^\s{0,8}\[?[WEF]\d{4} |\b\w{0,40}Warning\b|^\s{0,8}File \"|^Traceback |^\s{0,8}(?:\+ |\$ |>>> )|^[A-Z][A-Z0-9_]{1,60}=\S{0,99}$"
    r"|^\s{1,8}[\w.]{0,40}warn\w{0,10}\("  # the line of code below a warning
)
_EVALUATES = re.compile(
    rf"\s{{0,8}}\*\s(?!Epoch)|\W{{0,8}}(?:{'|'.join(sorted(EVALUATION))})"
    r"(?:\s(?:num_timesteps|timesteps?|global_step|steps?|iterations?)\s?=\s?\x01|"
    r"(?:\s+(?:set|results?|metrics?|summary|epoch|steps?|iter|iteration|batch)){0,2}\s{0,3}(?::(?!\s{0,9}\x01)|-\s|[|\]\[()]|\x01|(?<=\s)\x01))",
    re.IGNORECASE,
)
_EVALUATES_BEHIND = re.compile(
    rf"\b[A-Za-z]{{1,20}}\((?:val|test|eval|valid)\)|\|\s{{1,3}}(?:{'|'.join(sorted(EVALUATION))})\s{{1,3}}\|",
    re.IGNORECASE,
)
_HINT = re.compile(
    "|".join(FOREIGN_COUNTS)
    + r"|step|it[eé]r|[eé]po[cq]|\bep\b|batch|schritt|etape|\bpaso\b|lote|update|\bavg,|\bitr?\b|train|^\s{0,8}\{|\]\s?\[|^\s{0,4}\[?\x01[\]:]\s",
    re.IGNORECASE,
)
# "=> loaded checkpoint 'a.pth' (epoch 90)" tells where another training was; "data loading: 0.1" is a value.
_THING = r"(?:checkpoints?|ckpt|models?|weights|states?|snapshot|pretrained|parameters|optimizer)"
_LOADED = r"(?<![\w/.])(?:loaded|restored|resum(?:e|ed|ing)|restoring|geladen|fortgesetzt|wiederhergestellt|charg[eé]e?|cargad[oa]|загружен\w{0,2})(?![\w/])"
_TELLS_OF_LOADING = re.compile(
    rf"{_LOADED}|加载|恢复|불러|로드|読み込|(?<![\w/.])load(?:ing|_\w{{1,30}})?\s(?:[\w-]{{1,20}}\s){{0,2}}{_THING}\b",
    re.IGNORECASE,
)
_LOADED_BEHIND = re.compile(
    r"(?:加载|恢复|載入|загружен\w{0,2} )[^|\x01]{0,12}(?:检查点|模型|权重|檢查點|чекпоинт|модель|checkpoint)|"
    rf"{_LOADED}\s(?:from|{_THING})\b|\b{_THING}\s(?:(?:is|was)\s)?{_LOADED}",
    re.IGNORECASE,
)
# "Accuracy of the network on the 10000 test images: 55 %"
_ACCURACY = re.compile(
    r"\W{0,8}(?:\w{1,12}\s)?accuracy of (?:the|our|this) (?:network|net|model|classifier)\b[^\x01:]{0,60}(?:\x01[^\x01:]{0,60})?"
    r"(?::|\bis)\s{0,3}\x01\s?(%?)\W{0,3}",
    re.IGNORECASE,
)
# "Saved model of epoch 3", which may be any one before
_TELLS_OF_SAVING = re.compile(
    r"(?<![\w/.])(?:sav(?:ed|ing|es?)|wrote|writ(?:ing|ten)|stor(?:ed|ing)|kept|keeping|remov(?:ed|ing)|delet(?:ed|ing)"
    r"|gespeichert|gelöscht|sauvegardée?|guardad[oa]|salv[oa])(?![\w/])|保存|저장|сохран",
    re.IGNORECASE,
)
# '{"_type": "val_epoch", "loss": 0.5}', '{"mode": "val", "loss": 0.5}'
_PART_OF_RECORD = re.compile(
    rf"""['"](?:_?type|mode|split|phase|stage|subset)['"]\s?:\s?['"]({"|".join(sorted(EVALUATION))})(?:_(?:epoch|iter|step|set|loop)\w{{0,20}})?['"]""",
    re.IGNORECASE,
)
_HEADLINE = re.compile(
    r"[-=*#~]{3,99}[^\x01]{1,40}\x01\s{0,9}[-=*#~]{3,99}|\W{0,8}iteration\s?[:#]?\s?\x01\W{0,3}",
    re.IGNORECASE,
)
_PART_BEFORE = re.compile(rf"\b({PARTS_OF_A_RUN})\.?\s[A-Za-z][\w-]{{0,30}}\W{{0,8}}$", re.IGNORECASE)
# "Total loss 345.9", and nothing else
_LOSS_ALONE = re.compile(
    rf"\W{{0,8}}(?:(?:total|overall|average|avg|mean|{PARTS_OF_A_RUN})\.?\s){{1,2}}loss\s{{1,8}}\x01\s{{0,9}}",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[^\W\d_]+")
_BEFORE_MEASURES = frozenset({"time", "time_s", "lr", "learning_rate"})  # "Time: 12.3 train_loss: 0.5"
_NAMES = re.compile(r"[^\W\d][\w@/.-]{0,60}")


def read_shape(texts: tuple[str, ...]) -> Layout | None:
    """The meaning of a shape without a bar; None if its lines say nothing about a training."""
    whole = NUMBER.join(texts)
    if len(texts) == 1 or _NOISE.search(whole):
        return None
    if (call := _CALL.search(whole)) is not None:  # an object's repr: Namespace(lr=0.1)
        texts = tuple(whole[: call.start()].split(NUMBER))
        whole = NUMBER.join(texts)
    if len(texts) == 1 or not (_HINT.search(whole) or any(map(is_measure, _NAMES.findall(whole, 0, 600)))):
        return None
    texts, logger = without_logger(texts)
    whole = NUMBER.join(texts)
    layout = _read_accuracy(texts, whole) or _read_loss_alone(texts, whole)
    layout = layout or _read_line(texts, whole, is_logged=bool(logger))
    return layout and (replace(layout, logger=logger) if logger else layout)


def _read_accuracy(texts: tuple[str, ...], whole: str) -> Layout | None:
    """The meaning of a sentence that many tutorials end with; the number of images is no metric."""
    hit = _ACCURACY.fullmatch(whole.strip())
    if hit is None:
        return None
    words = _WORDS.findall(whole.lower())
    part = next((word for word in words if word in EVALUATION), None)
    part = part or next((word for word in words if word in TRAINING), None)
    name = f"{part}_accuracy" if part else "accuracy"
    return Layout(Kind.VALUES, (Field(len(texts) - 2, f"{name}_percent" if hit[1] else name),))


def _read_loss_alone(texts: tuple[str, ...], whole: str) -> Layout | None:
    """The meaning of a line with one loss, without a sign before it: "Total loss 345.9"."""
    prefix = LOG_PREFIX.match(whole)
    rest = whole[prefix.end() :] if prefix else whole
    if _LOSS_ALONE.fullmatch(rest) is None:
        return None
    words = [word for word in _WORDS.findall(rest.lower()) if word not in LEFT_OUT]
    return Layout(Kind.VALUES, (Field(len(texts) - 2, "_".join(words)),))


def _read_line(texts: tuple[str, ...], whole: str, *, is_logged: bool) -> Layout | None:
    builder = Builder()
    builder.explicit = builder.is_logged = is_logged
    layout = _read_with(builder, texts, whole)
    if layout is None or builder.count_at < 0:
        return layout
    otherwise = Builder()
    otherwise.counts_behind_measure, otherwise.explicit = False, is_logged
    return replace(layout, count_at=builder.count_at, otherwise=_read_with(otherwise, texts, whole))


def _read_with(builder: Builder, texts: tuple[str, ...], whole: str) -> Layout | None:
    builder.parts, builder.past = parts_of(texts, whole), past_counts(texts)
    for number in read_start(builder, numbers_of(texts, 0, len(texts) - 1), texts):
        builder.take(number)
    builder.take_ends()
    episodes = builder.take_episode()
    prefix = LOG_PREFIX.match(whole)
    rest = whole[prefix.end() :] if prefix else whole
    line = whole.strip()
    printed_dict = line.startswith("{") and line.endswith("}")
    if _describes_run(builder, printed_dict=printed_dict):
        return None
    if (part := _PART_OF_RECORD.search(whole)) is not None:
        builder.count = None  # a date before the record
        return _read_evaluation(builder, part[1])
    if _EVALUATES.match(line) or _EVALUATES.match(rest) or _EVALUATES_BEHIND.search(rest):
        return _read_evaluation(builder, rest)
    # "Step 5 starts on host 3": words and numbers alone are metrics only if trainers measure something of that name.
    fields = tuple(builder.fields.values()) if builder.explicit or _has_units(builder) else ()
    fields = _share_part(fields, texts)
    if builder.tells_of_past and builder.step is builder.epoch is None:
        fields = named_best(fields)
    # "Step 5: load the data" is prose; but many tutorials print an epoch alone.
    if builder.epoch or (builder.step and (fields or builder.has_total or _is_headline(builder, line))):
        if _tells_of_loading(builder, texts, alone=not fields):
            return None
        counts_all = builder.step_rank == GLOBAL_RANK
        return Layout(
            Kind.PROGRESS, fields, builder.step, builder.epoch, counts_all, builder.within, builder.samples, printed_dict,
            episodes=episodes, lone=len(texts) == 2 and (":" in texts[0] or "=" in texts[0]),
            evaluates=_only_evaluates(fields), behind_count=builder.behind_count or only_names_best(builder, texts) or _tells_of_saving(whole, fields)
            or (not fields and builder.names_thing),
        )  # fmt: skip
    measured = [field.name for field in fields if is_measure(field.name)]
    if measured and all(map(is_failure, measured)):
        return None  # "Error: 404"
    if fields and (printed_dict or _only_measures(builder, rest)):
        return Layout(Kind.VALUES, _of_first_part(fields, rest), printed_dict=printed_dict)
    if measured and _lists_values(builder, rest):
        return Layout(Kind.VALUES, _of_first_part(fields, rest), below_heading=True)
    return None


def _of_first_part(fields: tuple[Field, ...], rest: str) -> tuple[Field, ...]:
    """Name the evaluation with which a line begins: "Test net output #0: accuracy = 0.97"."""
    first = _WORDS.match(rest.lstrip())
    if first is None or first[0].lower() not in EVALUATION:
        return fields
    part = first[0].lower()
    return tuple(
        field._replace(name=in_part(field.name, part)) if is_measure(field.name) else field
        for field in fields
    )


def _share_part(fields: tuple[Field, ...], texts: tuple[str, ...]) -> tuple[Field, ...]:
    """Give all measures of a line the part that its first one names: "val Loss: 0.25 Acc: 0.91"."""
    measured = [field for field in fields if is_measure(field.name)]
    if len(measured) < 2 or (hit := _PART_BEFORE.search(texts[measured[0].at][-160:])) is None:
        return fields
    part, rest = hit[1].lower(), {field.name.lower() for field in measured[1:]}
    has_part = any(not PARTS.isdisjoint(_WORDS.findall(name)) for name in rest)
    has_part = has_part or any(". " in text for text in texts[measured[0].at + 1 : measured[1].at + 1])
    if has_part or measured[0].name.lower().removeprefix(f"{part}_") in rest:
        return fields
    return tuple(
        field._replace(name=f"{part}_{field.name}") if field in measured[1:] else field for field in fields
    )


def _only_evaluates(fields: tuple[Field, ...]) -> bool:
    """Whether what a line measures is of an evaluation alone, whose batches may have a counter of their own."""
    measured = [field.name.lower() for field in fields if is_measure(field.name)]
    return bool(measured) and all(not EVALUATION.isdisjoint(_WORDS.findall(name)) for name in measured)


def _is_headline(builder: Builder, line: str) -> bool:
    """Whether a line is nothing but the count of an iteration: "----- Iteration #3 -----"."""
    return builder.step_rank == ITERATION_RANK and _HEADLINE.fullmatch(line) is not None


def _tells_of_saving(whole: str, fields: tuple[Field, ...]) -> bool:
    """Whether a line only tells that something was saved, maybe long after its epoch: "Saved model of epoch 3"."""
    return not fields and _TELLS_OF_SAVING.search(whole) is not None


def _has_units(builder: Builder) -> bool:
    """Whether a number has a unit: "12 ms", "45%"."""
    return any("_" in name for name in builder.fields)


def _describes_run(builder: Builder, *, printed_dict: bool) -> bool:
    """Whether a line lists settings, like ``print(args)`` or a dumped configuration."""
    measured = any(map(is_measure, builder.fields))
    if printed_dict:
        only_settings = all(name.lower() in OFTEN_MEASURED for name in builder.fields)
        has_role = builder.first_is_role is not None and not builder.settings
        return builder.settings > 1 or only_settings or not (measured or has_role)
    if measured and builder.step is not None and builder.step.of is not None:
        return (
            False  # "samples/sec: 12.3 | iteration 10/ 320000 | lm_loss: 10.8 | number of nan iterations: 0"
        )
    return not builder.first_is_role and (builder.settings > 1 or (builder.settings == 1 and not measured))


def _tells_of_loading(builder: Builder, texts: tuple[str, ...], *, alone: bool) -> bool:
    """Whether the step or epoch of a line is that of a checkpoint that was loaded."""
    first = min(slot.at for slot in (builder.epoch, builder.step) if slot is not None)
    # Beside measured values "resumed" may be a tag, and "data loaded in 0.3s" a time.
    is_measured = any(is_measure(field.name) for field in builder.fields.values())
    loading = _LOADED_BEHIND if is_measured else _TELLS_OF_LOADING
    return loading.search(NUMBER.join(texts[: first + 1])) is not None or (
        alone and _LOADED_BEHIND.search(NUMBER.join(texts)) is not None
    )


def _read_evaluation(builder: Builder, rest: str) -> Layout | None:
    """Read the values of an evaluation, "Test set: loss: 0.5"; they are not progress, and running means are skipped."""
    place = builder.step or builder.count
    ended = place is None or place.of is None
    words = [word.lower() for word in _WORDS.findall(rest, 0, 60)]
    part = next((word for word in words if word in EVALUATION), "val")
    named = [field for field in builder.fields.values() if field.name.lower() != part]  # "Test 0, loss: 1.7"
    fields = tuple(field._replace(name=in_part(field.name, part)) for field in named)
    if not any(is_measure(field.name) for field in fields):
        return None
    return Layout(Kind.VALUES, fields, step=None if ended else place)


def _lists_values(builder: Builder, rest: str) -> bool:
    """Whether a line has only names with a sign before their values: "Norm: 12.3, Bias: 0.1, Avg. loss: 0.5"."""
    if builder.prose or builder.loose or builder.settings or builder.first_is_role is not None:
        return False
    return (
        builder.count is None
        and len(builder.fields) > 1
        and len(_WORDS.findall(rest.partition(NUMBER)[0])) <= 4
    )


def _only_measures(builder: Builder, rest: str) -> bool:
    """Whether a line has only measures: ``val loss: 0.5, acc: 0.9``."""
    if (
        builder.prose
        or (builder.loose and not builder.is_logged)
        or builder.settings
        or builder.first_is_role is not None
    ):
        return False
    first = next((name for name in builder.fields if name.lower() not in _BEFORE_MEASURES), "")
    return is_measure(first) and len(_WORDS.findall(rest.partition(NUMBER)[0])) <= 4
