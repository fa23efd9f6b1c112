"""The step that a checkpoint's name tells; epochs, sizes, dates and versions are no steps."""

import re

LARGEST_STEP = 10**15
_STEP_WORD = r"(?:global[-_ ]?)?(?:steps?|iters?|iterations?|it|updates?|batch(?:es)?)"
_FIRST = r"(?<![A-Za-z0-9])"  # the word stands alone: no "timestep", no "2step"
_EXACT = (
    re.compile(rf"{_FIRST}{_STEP_WORD}[-_=. ]*(\d+)(?![\dA-Za-z])", re.IGNORECASE),
    re.compile(rf"{_FIRST}(\d+)[-_ ]?{_STEP_WORD}(?![A-Za-z0-9])", re.IGNORECASE),
    re.compile(rf"{_FIRST}global_?step(\d+)", re.IGNORECASE),
)
# The number may count saves or epochs as well: what the run reported has to agree.
_LIKELY = re.compile(
    r"(?:.*[-_.])?(?:checkpoint|ckpt|chkpt|snapshot|save|s|n)[-_=.]?(\d+)|(\d+)", re.IGNORECASE
)
_LAST_NUMBER = re.compile(r".*[-_=](\d+)", re.DOTALL)
_EPOCH = re.compile(rf"{_FIRST}(?:epochs?|ep|e)[-_=. ]*(\d+)(?![\dA-Za-z])", re.IGNORECASE)
_OF_A_PART = re.compile(
    rf"{_FIRST}(?:rank|shard|part|worker|fold|expert|layer|seed|version|world|mp|zero|dp|tp|pp)s?[-_ ]?\d|\d+-of-\d+",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d{4}|\d{6})?")


def step_in_name(name: str, reached: int | None = None, latest: int | None = None) -> int | None:
    """The step in the name of a file or folder; None where there is none, or only an epoch.

    Args:
        reached: the step that the run reported about when it was written.  A number without the word "step"
            counts only if it agrees with this.
        latest: the newest step that it has reported since; what lies between agrees as well, for reports may be
            read late.
    """
    if (step := _exact_step(name)) is not None:
        return step
    stem = _stem(name)
    if _EPOCH.search(stem) or _OF_A_PART.search(stem):
        return None
    if (found := _LIKELY.fullmatch(stem)) is not None:
        number, share = found[1] or found[2], 0.5
    elif reached is not None and (found := _LAST_NUMBER.fullmatch(stem)) is not None:
        number, share = found[1], 0.05
    else:
        return None
    if _is_number_of_steps(number) and (reached is None or _agrees(int(number), reached, latest, share)):
        return int(number)
    return None


def series_number(name: str) -> tuple[str, int] | None:
    """What tells a file from those of other saves in its folder: its step or epoch, and which; None where nothing does.

    Files that share it, such as ``model_step_100.pt`` and ``optim_step_100.pt``, are one save.
    """
    if (step := _exact_step(name)) is not None:
        return "step", step
    stem = _stem(name)
    if _OF_A_PART.search(stem):
        return None
    if (found := _EPOCH.search(stem)) is not None:
        return "epoch", int(found[1])
    if (found := _LIKELY.fullmatch(stem)) is not None and _is_number_of_steps(number := found[1] or found[2]):
        return "step", int(number)
    return None


def _exact_step(name: str) -> int | None:
    for pattern in _EXACT:
        if (found := pattern.search(_stem(name))) is not None and int(found[1]) <= LARGEST_STEP:
            return int(found[1])
    return None


def _stem(name: str) -> str:
    """Without its suffixes, which may hold digits (``.h5``, ``.mp4``); a number is no suffix."""
    while (found := re.fullmatch(r"(.+)\.(?!\d+$)[A-Za-z][A-Za-z0-9]{0,11}", name, re.DOTALL)) is not None:
        name = found[1]
    return name


def _is_number_of_steps(digits: str) -> bool:
    return len(digits) <= 15 and not _DATE.fullmatch(digits)


def _agrees(number: int, reached: int, latest: int | None, share: float) -> bool:
    nearest = min(max(number, reached), max(reached, latest or 0))
    return abs(number - nearest) <= 2 + share * max(number, nearest)
