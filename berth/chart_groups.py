"""Which charts a job's metrics make, and in which order people look at them."""

import re
from collections.abc import Iterable

from berth.losses import is_loss, loss_rank

_OF_ANOTHER_SET = re.compile(r"(?:val|valid|eval)([/_])(.+)")
_RANKS = [re.compile(each) for each in (r"(?:_per_s|/s)$", r"(?:^|[/_])lr$", r"grad_norm$")]


def chart_groups(names: Iterable[str]) -> list[list[str]]:
    """Names that are drawn over each other: ``val/x`` over ``train/x`` or ``x``, else each alone.

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


def in_order(names: Iterable[str]) -> list[str]:
    """The names in the order of their charts."""
    return [name for group in chart_groups(names) for name in group]


def _rank(name: str) -> tuple[int, int, str]:
    if is_loss(name):
        return -1, loss_rank(name), name
    return next((at for at, each in enumerate(_RANKS) if each.search(name)), len(_RANKS)), 0, name
