"""Reads the step from a checkpoint's name; ignores epochs, sizes, dates and versions."""

import re

LARGEST_STEP = 10**15
_STEP_WORD = r"(?:global[-_ ]?)?(?:steps?|iters?|iterations?|it|updates?|batch(?:es)?)"
_FIRST = r"(?<![A-Za-z0-9])"  # a whole word: not "timestep", not "2step"
_EXACT = (
    re.compile(rf"{_FIRST}{_STEP_WORD}[-_=. ]*(\d+)(?![\dA-Za-z])", re.IGNORECASE),
    re.compile(rf"{_FIRST}(\d+)[-_ ]?{_STEP_WORD}(?![A-Za-z0-9])", re.IGNORECASE),
    re.compile(rf"{_FIRST}global_?step(\d+)", re.IGNORECASE),
)
# The number may also count saves or epochs, so it must agree with the reported step.
_LIKELY = re.compile(
    r"(?:.*[-_.])?(?:checkpoint|ckpt|chkpt|snapshot|save|s|n)[-_=.]?(\d+)|(\d+)", re.IGNORECASE
)
_LAST_NUMBER = re.compile(r".*[-_=](\d+)", re.DOTALL)
_EPOCH = re.compile(rf"{_FIRST}(?:epochs?|ep|e)[-_=. ]*(\d+)(?![\dA-Za-z])", re.IGNORECASE)
_BEHIND_EPOCH = re.compile(rf"{_FIRST}(?:epochs?|ep|e)[-_=. ]*\d+[-_](?:0*)(\d+)", re.IGNORECASE)
_OF_A_PART = re.compile(
    rf"{_FIRST}(?:rank|shard|part|worker|fold|expert|layer|seed|version|world|mp|zero|dp|tp|pp)s?[-_ ]?\d|\d+-of-\d+",
    re.IGNORECASE,
)
# Prepared data and results, which a script needs all together: ``train_0001.pt``, but not ``feature_extractor_100.pth``.
_OF_DATA = re.compile(
    r".*(?<![A-Za-z])(?:train|training|val|valid|validation|test|eval|data|dataset|split|chunk|sample|example|image"
    r"|token|label|feature|feat|embedding|emb|latent|logit|prediction|pred)s?[-_=]\d+",
    re.IGNORECASE | re.DOTALL,
)
_ARRAY_SUFFIXES = (".npy", ".npz")  # of NumPy: data more often than checkpoints
_DATE = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d{4}|\d{6})?")


def step_in_name(name: str, reached: int | None = None, latest: int | None = None) -> int | None:
    """The step in the name of a file or folder; None for a name without a number, or with only an epoch.

    Args:
        reached: the step that the run reported around the time of the write.  A number without the word "step"
            counts only if it agrees with this step.
        latest: the newest step reported since.  Numbers between the two agree as well, since reports may be read
            late.
    """
    if (step := _exact_step(name)) is not None:
        return step
    stem = _stem(name)
    if _OF_A_PART.search(stem):
        return None
    behind = _BEHIND_EPOCH.search(stem)
    if behind is not None and behind.end() == len(stem) and reached is not None:
        number, share = behind[1], 0.05  # "model_e3_460.pt": the log may be behind
    elif _EPOCH.search(stem):
        return None
    elif (match := _LIKELY.fullmatch(stem)) is not None:
        number, share = match[1] or match[2], 0.5
    elif reached is not None and (match := _LAST_NUMBER.fullmatch(stem)) is not None:
        number, share = match[1], 0.05
    else:
        return None
    if _is_number_of_steps(number) and (reached is None or _agrees(int(number), reached, latest, share)):
        return int(number)
    return None


def series_number(name: str) -> tuple[str, int] | None:
    """The step or epoch that distinguishes a file from other saves in its folder; None without one.

    Files with the same number, such as ``model_step_100.pt`` and ``optim_step_100.pt``, belong to one save.
    """
    if (step := _exact_step(name)) is not None:
        return "step", step
    stem = _stem(name)
    if _OF_A_PART.search(stem):
        return None
    if (match := _EPOCH.search(stem)) is not None:
        return "epoch", int(match[1])
    if (match := _LIKELY.fullmatch(stem)) is not None and _is_number_of_steps(number := match[1] or match[2]):
        return "step", int(number)
    return None


def family_number(name: str) -> tuple[str, int] | None:
    """What is beside the last number in a file's name, and that number: ``model_0002500.pth``, ``G_3.pt``.

    The number may count steps, epochs or the parts of one save; only the times of writing tell which.
    None for a name without such a number, or whose number counts parts.
    """
    stem = _stem(name)
    match = _LAST_NUMBER.fullmatch(stem)
    if match is None or is_part_of_many(stem) or not _is_number_of_steps(match[1]):
        return None
    return f"{stem[: match.start(1)]}#{name[len(stem) :]}", int(match[1])


def marks_of_data(name: str) -> int:
    """What speaks for a piece of prepared data or a result rather than a checkpoint: its suffix, its word; 0 to 2."""
    return name.lower().endswith(_ARRAY_SUFFIXES) + (_OF_DATA.fullmatch(_stem(name)) is not None)


def is_part_of_many(name: str) -> bool:
    """Whether a name says that the file is one of several of the same save, such as ``model-00001-of-00004.safetensors``."""
    return _OF_A_PART.search(name) is not None


def _exact_step(name: str) -> int | None:
    for pattern in _EXACT:
        if (match := pattern.search(_stem(name))) is not None and int(match[1]) <= LARGEST_STEP:
            return int(match[1])
    return None


def _stem(name: str) -> str:
    """The name without its suffixes, which may hold digits (``.h5``, ``.mp4``).  A number is not a suffix."""
    while (match := re.fullmatch(r"(.+)\.(?!\d+$)[A-Za-z][A-Za-z0-9]{0,11}", name, re.DOTALL)) is not None:
        name = match[1]
    return name


def _is_number_of_steps(digits: str) -> bool:
    return len(digits) <= 15 and not _DATE.fullmatch(digits)


def _agrees(number: int, reached: int, latest: int | None, share: float) -> bool:
    nearest = min(max(number, reached), max(reached, latest or 0))
    return abs(number - nearest) <= 2 + share * max(number, nearest)
