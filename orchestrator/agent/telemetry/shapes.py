"""The meaning of a line's shape."""

import re
from collections.abc import Mapping

from orchestrator.agent.telemetry.layouts import Field, Kind, Layout
from orchestrator.agent.telemetry.roles import GLOBAL_RANK, Builder, in_part, numbers_of
from orchestrator.agent.telemetry.tokens import NUMBER
from orchestrator.agent.telemetry.unnamed_counts import read_start
from orchestrator.agent.telemetry.vocabulary import EVALUATION, OFTEN_MEASURED, PARTS, TRAINING, is_measure

_SCOPE = re.compile(r"""['"](\w{1,40})['"]\s?:\s?\{|([{}])""")  # "eval": {"loss": 0.5}
_CALL = re.compile(r"[A-Za-z_][\w.]{0,79}\(\w{1,79}=")
_NOISE = re.compile(
    r"^\s{0,8}\[?[WEF]\d{4} |\b\w{0,40}Warning\b|^\s{0,8}File \"|^Traceback |^\s{0,8}(?:\+ |\$ |>>> )|^[A-Z][A-Z0-9_]{1,60}=\S{0,99}$"
    r"|^\s{1,8}[\w.]{0,40}warn\w{0,10}\("  # the line of code below a warning
)
_PARTS_OF_A_RUN = "|".join(sorted(EVALUATION | TRAINING))
_LOG_PREFIX = re.compile(
    r"[\s\x01:,./|+-]{0,60}(?:\[[^\]]{0,80}\]\s{0,2})?"
    # "[__main__][INFO]" of Hydra
    rf"(?:\[(?!(?i:{_PARTS_OF_A_RUN})\])[A-Za-z_][\w.]{{0,79}}\]\s{{0,2}}){{0,2}}"
    r"[\s:|-]{0,4}(?:(?:INFO|DEBUG|WARNING|root|logger)\b[\s:|\]-]{0,4}){0,2}"
)
_EVALUATES = re.compile(
    rf"\s{{0,8}}\*\s(?!Epoch)|\W{{0,8}}(?:{'|'.join(sorted(EVALUATION))})"
    r"(?:\s+(?:set|results?|metrics?|epoch|steps?|iter|iteration|batch)){0,2}\s{0,3}(?::(?!\s{0,9}\x01)|-\s|[|\]\[()]|\x01|(?<=\s)\x01)",
    re.IGNORECASE,
)
_EVALUATES_BEHIND = re.compile(
    rf"\b[A-Za-z]{{1,20}}\((?:val|test|eval|valid)\)|\|\s{{1,3}}(?:{'|'.join(sorted(EVALUATION))})\s{{1,3}}\|",
    re.IGNORECASE,
)
_HINT = re.compile(
    r"step|it[eé]r|[eé]po[cq]|\bep\b|batch|schritt|[eé]tape|\bpaso\b|lote|轮|步|迭代|批次|update|\bitr?\b|train|^\s{0,8}\{|\]\s?\[|^\s{0,4}\[?\x01[\]:]\s",
    re.IGNORECASE,
)
# "=> loaded checkpoint 'a.pth' (epoch 90)" tells where another training was; "data loading: 0.1" is a value.
_THING = r"(?:checkpoints?|ckpt|models?|weights|states?|snapshot|pretrained|parameters|optimizer)"
_LOADED = r"(?<![\w/.])(?:loaded|restored|resum(?:e|ed|ing)|restoring|geladen|fortgesetzt|wiederhergestellt|charg[eé]e?|cargad[oa])(?![\w/])"
_TELLS_OF_LOADING = re.compile(
    rf"{_LOADED}|加载|恢复|(?<![\w/.])load(?:ing|_\w{{1,30}})?\s(?:[\w-]{{1,20}}\s){{0,2}}{_THING}\b",
    re.IGNORECASE,
)
_LOADED_BEHIND = re.compile(
    rf"{_LOADED}\s(?:from|{_THING})\b|\b{_THING}\s(?:(?:is|was)\s)?{_LOADED}", re.IGNORECASE
)
_PART_BEFORE = re.compile(rf"\b({_PARTS_OF_A_RUN})\.?\s[A-Za-z][\w-]{{0,30}}\W{{0,8}}$", re.IGNORECASE)
_IS_BEST = re.compile(r":?\s(?:(?:is|was|gave|has|had)\s)?(?:still\s)?(?:the\s)?best\b", re.IGNORECASE)
_WORDS = re.compile(r"[^\W\d_]+")
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
    return _read_line(texts, whole)


def _read_line(texts: tuple[str, ...], whole: str) -> Layout | None:
    builder = Builder()
    builder.scopes = _scopes_of(texts) if whole.count("{") > 1 else {}
    for number in read_start(builder, numbers_of(texts, 0, len(texts) - 1), texts):
        builder.take(number)
    builder.take_ends()
    episodes = builder.take_episode()
    prefix = _LOG_PREFIX.match(whole)
    rest = whole[prefix.end() :] if prefix else whole
    line = whole.strip()
    printed_dict = line.startswith("{") and line.endswith("}")
    if _describes_run(builder, printed_dict=printed_dict):
        return None
    if _EVALUATES.match(line) or _EVALUATES.match(rest) or _EVALUATES_BEHIND.search(rest):
        return _read_evaluation(builder, rest)
    # "Step 5 starts on host 3": words and numbers alone are metrics only if trainers measure something of that name.
    fields = tuple(builder.fields.values()) if builder.explicit or _has_units(builder) else ()
    fields = _share_part(fields, texts)
    # "Step 5: load the data" is prose; but many tutorials print an epoch alone.
    if builder.epoch or (builder.step and (fields or builder.step.of is not None)):
        if _tells_of_loading(builder, texts, alone=not fields):
            return None
        counts_all = builder.step_rank == GLOBAL_RANK
        return Layout(
            Kind.PROGRESS, fields, builder.step, builder.epoch, counts_all, builder.within, builder.samples, printed_dict,
            episodes=episodes, lone=len(texts) == 2 and (":" in texts[0] or "=" in texts[0]),
            evaluates=_only_evaluates(fields), behind_count=builder.behind_count or _names_best(builder, texts),
        )  # fmt: skip
    if fields and (printed_dict or _only_measures(builder, rest)):
        return Layout(Kind.VALUES, fields, printed_dict=printed_dict)
    return None


def _share_part(fields: tuple[Field, ...], texts: tuple[str, ...]) -> tuple[Field, ...]:
    """Give all measures of a line the part that its first one names: "val Loss: 0.25 Acc: 0.91"."""
    measured = [field for field in fields if is_measure(field.name)]
    if len(measured) < 2 or (hit := _PART_BEFORE.search(texts[measured[0].at][-160:])) is None:
        return fields
    part, rest = hit[1].lower(), {field.name.lower() for field in measured[1:]}
    has_part = any(not PARTS.isdisjoint(_WORDS.findall(name)) for name in rest)
    if has_part or measured[0].name.lower().removeprefix(f"{part}_") in rest:
        return fields
    return tuple(
        field._replace(name=f"{part}_{field.name}") if field in measured[1:] else field for field in fields
    )


def _only_evaluates(fields: tuple[Field, ...]) -> bool:
    """Whether what a line measures is of an evaluation alone, whose batches may have a counter of their own."""
    measured = [field.name.lower() for field in fields if is_measure(field.name)]
    return bool(measured) and all(not EVALUATION.isdisjoint(_WORDS.findall(name)) for name in measured)


def _names_best(builder: Builder, texts: tuple[str, ...]) -> bool:
    """Whether a line only names the best epoch, which may be an earlier one: "epoch 3/10 is best"."""
    if builder.epoch is None or builder.step is not None:
        return False
    last = builder.epoch.at if builder.epoch.of is None else builder.epoch.of
    return _IS_BEST.match(texts[last + 1]) is not None


def _scopes_of(texts: tuple[str, ...]) -> dict[int, str]:
    """By the place of a number within a dict of a dict, the name of the inner dict: ``{"eval": {"loss": 0.5}}``."""
    found: dict[int, str] = {}
    opened: list[str] = []
    for at, text in enumerate(texts[:-1]):
        for name, brace in _SCOPE.findall(text):
            if brace != "}":
                opened.append(name)
            elif opened:
                opened.pop()
        if opened and opened[-1]:
            found[at] = opened[-1]
    return found


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
    fields = tuple(field._replace(name=in_part(field.name, part)) for field in builder.fields.values())
    if not any(is_measure(field.name) for field in fields):
        return None
    return Layout(Kind.VALUES, fields, step=None if ended else place)


def of_part(values: Mapping[str, float], part: str) -> dict[str, float]:
    """The values of an evaluation under names that say so."""
    return {in_part(name, part): value for name, value in values.items()}


def _only_measures(builder: Builder, rest: str) -> bool:
    """Whether a line has only measures: ``val loss: 0.5, acc: 0.9``."""
    if builder.prose or builder.loose or builder.settings or builder.first_is_role is not None:
        return False
    first = next(iter(builder.fields))
    return is_measure(first) and len(_WORDS.findall(rest.partition(NUMBER)[0])) <= 4
