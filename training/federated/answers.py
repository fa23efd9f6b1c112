"""What the server takes from a site: values of the right form and number, or a reason why there are none."""

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from training.federated.masking import Levels, is_key
from training.federated.messages import Message, Unreadable, by_site
from training.federated.secure import Publics
from training.federated.shares import PRIME

_LONGEST_SEALED = 1_000  # characters of two sealed shares


def publics_of(answer: Message) -> Publics:
    """The public keys of a site.

    Raises:
        Unreadable: they are missing, or no keys.
    """
    publics = answer.facts.get("publics")
    if not (isinstance(publics, list) and len(publics) == 2 and all(map(_is_whole, publics))):
        raise Unreadable("its keys are missing")
    if publics[0] == publics[1] or not all(map(is_key, publics)):
        raise Unreadable("its keys are no keys")
    return publics[0], publics[1]


class Sealed(NamedTuple):
    """What a site sends of its secrets."""

    shares: dict[int, str]  # by the site that can read them
    digest: str  # of its own mask


def sealed_of(answer: Message, others: Set[int]) -> Sealed:
    """The sealed shares of a site, one for each other site.

    Raises:
        Unreadable: some are missing, or are no texts.
    """
    sealed, digest = by_site(answer.facts.get("sealed")), answer.facts.get("digest")
    if sealed.keys() != others:
        raise Unreadable("it sent no share for some of the sites")
    texts = [*sealed.values(), digest]
    if not all(isinstance(text, str) and len(text) <= _LONGEST_SEALED for text in texts):
        raise Unreadable("its shares are no sealed shares")
    return Sealed(sealed, str(digest))


def levels_of(answer: Message, count: int) -> Levels:
    """The masked update of a site.

    Raises:
        Unreadable: it has another size.
    """
    if len(answer.data) != 8 * count:
        raise Unreadable("its update has another size than the model")
    return np.frombuffer(answer.data, np.uint64)


def accused_of(answer: Message, others: Set[int]) -> frozenset[int]:
    """The sites whose shares a site could not read; none if it sent its update.

    Args:
        others: the sites whose shares it was sent.

    Raises:
        Unreadable: something else, or sites that it was sent nothing of.
    """
    numbers = answer.facts.get("unreadable", [])
    if not (isinstance(numbers, list) and all(map(_is_whole, numbers))):
        raise Unreadable("it sent something else than its update")
    if not frozenset(numbers) <= others:
        raise Unreadable("it says that it cannot read shares that it was not sent")
    return frozenset(numbers)


def shares_of(answer: Message, included: Set[int]) -> dict[int, int]:
    """A share of each site that masks were made with.

    Raises:
        Unreadable: some are missing, or are no shares.
    """
    shares = by_site(answer.facts.get("shares"))
    if shares.keys() != included:
        raise Unreadable("it sent shares of other sites than it was asked for")
    if not all(_is_whole(value) and 0 <= value < PRIME for value in shares.values()):
        raise Unreadable("its shares are no shares")
    return shares


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
