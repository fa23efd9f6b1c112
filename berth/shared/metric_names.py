"""What the names of metrics tell: which of them is the loss, and which charts they make.

One rule for lists, charts, comparisons, reports and the watch for divergence.
"""

import re
from collections.abc import Iterable

FEW_CHARTS = 6  # are not divided into sections; static/js/metrics.js has the same number
_PARTS = re.compile(r"[\W_]+")
_LOSSES_ABROAD = (
    "verlust",
    "perte",
    "pérdida",
    "perdida",
    "perda",
    "损失",
    "損失",
    "손실",
    "로스",
    "потери",
    "потеря",
)
_LOSS_ENDS = ("loss", "losses", *_LOSSES_ABROAD)
_NO_LOSS = frozenset(
    {"scale", "scaler", "weight", "weights", "coef", "coeff", "lambda", "threshold", "smoothing"}
)
_EVALUATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev", "cv"})
# Of words that are one with the loss: "Validierungsverlust", "验证损失".
_EVALUATION_ABROAD = re.compile(
    "validierung|evaluierung|prüfung|validaci[oó]n|validação|évaluation|evaluación|prueba|验证|测试|驗證|測試|検証|テスト|評価"
    "|검증|테스트|평가|валидац|тест"
)
# Training losses first; Hugging Face's "train_loss" is the mean over the whole run, logged at its end.
_MAIN = ("train/loss", "loss", "train_loss", "loss_train", "training_loss", "total_loss", "lm_loss")
_OTHER, _EVALUATED = len(_MAIN), len(_MAIN) + 1
_OF_ANOTHER_SET = re.compile(r"(?:val|valid|eval)([/_])(.+)")
_RANKS = [re.compile(each) for each in (r"(?:_per_s|/s)$", r"(?:^|[/_])lr$", r"grad_norm$")]


def is_loss(name: str) -> bool:
    """Whether a metric is a loss: ``Loss``, ``train/loss``, ``Loss_D``, ``box_loss``, ``CrossEntropyLoss``."""
    parts = _parts(name)
    return any(part.endswith(_LOSS_ENDS) for part in parts) and _NO_LOSS.isdisjoint(parts)


_LOW = frozenset(
    {"error", "err", "perplexity", "ppl", "mae", "mse", "rmse", "wer", "cer", "fid", "bpb", "nll"}
)
_HIGH = frozenset(
    {
        *(
            "acc",
            "accuracy",
            "genauigkeit",
            "précision",
            "precisión",
            *("exactitude", "exactitud", "precisão", "准确率", "準確率", "正解率", "정확도", "точность"),
            "top1",
            "top5",
            "f1",
            "auc",
            "auroc",
            "precision",
            "recall",
            "map",
            "iou",
            "miou",
        ),
        *("bleu", "rouge", "score", "reward", "return", "r2", "psnr", "ssim", "mfu"),
    }
)


def lower_is_better(name: str) -> bool | None:
    """Which way a metric improves, by its name; None if the name does not tell."""
    parts = set(_parts(name))
    if is_loss(name) or parts & _LOW:
        return True
    return False if parts & _HIGH or name.lower().endswith(("_per_s", "/s")) else None


def in_loss_order(names: Iterable[str]) -> list[str]:
    """Return the losses among the names; the first represents the job wherever one number does."""
    return sorted(filter(is_loss, names), key=lambda name: (loss_rank(name), name))


def loss_rank(name: str) -> int:
    """Rank a loss: the main training loss, then other training losses, then evaluation losses."""
    lower = name.lower()
    if lower in _MAIN:
        return _MAIN.index(lower)
    parts = _parts(name)
    joined = "_".join(parts)
    if joined in _LOSSES_ABROAD:
        joined = "loss"
    if joined in _MAIN:
        return _MAIN.index(joined)
    is_evaluated = not _EVALUATION.isdisjoint(parts) or _EVALUATION_ABROAD.search(joined) is not None
    return _EVALUATED if is_evaluated else _OTHER


def _parts(name: str) -> list[str]:
    return [part for part in _PARTS.split(name.lower()) if part]


def chart_groups(names: Iterable[str]) -> list[list[str]]:
    """Group names that share a chart: ``val/x`` with ``train/x`` or ``x``, else each alone.

    Losses come first, then throughput, learning rates and gradient norms, then the rest by name.
    """
    known = set(names)
    twins: dict[str, str] = {}
    for name in sorted(known):
        if hit := _OF_ANOTHER_SET.fullmatch(name):
            twin = next((each for each in (f"train{hit[1]}{hit[2]}", hit[2]) if each in known), None)
            if twin and twin not in twins:
                twins[twin] = name
    alone = sorted(known - set(twins.values()), key=_rank)
    return [[name, twins[name]] if name in twins else [name] for name in alone]


def chart_sections(names: Iterable[str]) -> dict[str, list[str]]:
    """Divide many charts into sections by what stands before the first "/" of their names, in the order of the charts.

    Few charts, and charts that all begin alike, are one section without a title.
    """
    names = list(names)
    sections: dict[str, list[str]] = {}
    for name in names:
        before, slash, _ = name.partition("/")
        sections.setdefault(before if slash else "", []).append(name)
    return sections if len(sections) > 1 and len(names) > FEW_CHARTS else {"": names}


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order of their charts."""
    return [name for group in chart_groups(names) for name in group]


def main_metric(names: Iterable[str]) -> str | None:
    """The metric that stands for a job where one number does: a loss, else another measure, else the first chart."""
    return min(in_order(names), key=_weight, default=None)


def _weight(name: str) -> int:
    """How little a metric says about how good a model is: a loss, a measure, anything else, a rate or a setting."""
    if is_loss(name):
        return 0
    if any(each.search(name) for each in _RANKS):
        return 3
    return 2 if lower_is_better(name) is None else 1


def _rank(name: str) -> tuple[int, int, str]:
    if is_loss(name):
        return -1, loss_rank(name), name
    return next((at for at, each in enumerate(_RANKS) if each.search(name)), len(_RANKS)), 0, name
