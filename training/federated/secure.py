"""One sum of masked updates: what a site does for it, and how the server takes the masks off the sum.

Four steps (Bonawitz et al., 2017, section 4): keys, shares, masked updates, unmasking.  The server learns the sum of the
sites that sent their update, even if sites vanish in between, and no update alone: for each site it gets shares of its own
mask or of its key, never of both.
"""

import random
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np

from training.federated import masking, shares
from training.federated.masking import LEAST_SITES, Keys, Levels, Refused
from training.federated.shares import NotReadable

Publics = tuple[int, int]  # of masks, and of sealed shares
_MOST_GROUPS = 500  # that are tried where one of them gave a wrong share


def threshold_of(sites: int) -> int:
    """How many sites have to answer to recover masks: more than half, so that no two groups of them can."""
    return sites // 2 + 1


class SharesUnreadable(Refused):
    """Shares that were not sealed for this site, by the sites that sent them."""

    def __init__(self, sites: Sequence[int]) -> None:
        super().__init__(f"it got a share of site {sites[0]} that it cannot read")
        self.sites = list(sites)


class DealtWrongly(Exception):
    """The shares of a site do not belong together: it dealt wrong ones."""

    def __init__(self, site: int) -> None:
        super().__init__(f"the shares of site {site} do not belong together")
        self.site = site


class Member:
    """A site in one sum.  Each step can be taken once; a request that would uncover an update is refused."""

    def __init__(self, number: int, label: str, levels: Levels) -> None:
        self.number, self.label = number, label
        self._levels = levels
        self._masks, self._boxes = Keys(), Keys()
        self._seed = masking.new_secret()
        self._roster: dict[int, Publics] = {}
        self._received: dict[int, tuple[int, int]] = {}
        self._included: frozenset[int] = frozenset()
        self._done: set[str] = set()

    def publics(self) -> Publics:
        return self._masks.public, self._boxes.public

    def digest(self) -> str:
        """What tells the server, once it has put this site's own mask together, that it is the right one."""
        return masking.digest_of(self._seed)

    def share(self, roster: Mapping[int, Publics]) -> dict[int, str]:
        """Shares of this site's secrets, sealed for each other site.

        Raises:
            Refused: the sum would show too much, or the keys are not those that the sites sent.
        """
        self._once("share")
        self._check_roster(roster)
        self._roster = dict(roster)
        threshold = threshold_of(len(roster))
        seeds = shares.split(self._seed, roster, threshold)
        keys = shares.split(self._masks.secret, roster, threshold)
        self._received[self.number] = seeds[self.number], keys[self.number]
        return {
            other: shares.seal(
                self._box(other), self._box_label(self.number, other), (seeds[other], keys[other])
            )
            for other in roster
            if other != self.number
        }

    def mask(self, sealed: Mapping[int, str]) -> Levels:
        """The masked update.

        Args:
            sealed: shares for this site, by the site they came from; masks are made with these sites.

        Raises:
            Refused: too few sites, or a share that cannot be read.
        """
        self._once("mask")
        unreadable = []
        for other, text in sealed.items():
            if other not in self._roster or other == self.number:
                raise Refused("it got a share of a site that takes no part")
            try:
                self._received[other] = shares.unseal(
                    self._box(other), self._box_label(other, self.number), text
                )
            except NotReadable:
                unreadable.append(other)
        if unreadable:
            raise SharesUnreadable(unreadable)
        self._included = frozenset(self._received)
        if len(self._included) < max(LEAST_SITES, threshold_of(len(self._roster))):
            raise Refused("too few sites have sent their shares")
        count = len(self._levels)
        masked = self._levels + masking.own_mask(self._seed, self.label, count)
        for other in self._included - {self.number}:
            secret = self._masks.shared_with(self._roster[other][0])
            masked = masked + masking.pair_mask(self.number, other, secret, self.label, count)
        return masked

    def unmask(self, survivors: Set[int]) -> dict[int, int]:
        """A share for each site of the sum: of its own mask if its update came, else of its key.

        Raises:
            Refused: the sum would be of too few sites, or of sites that take no part.
        """
        self._once("unmask")
        least = max(LEAST_SITES, threshold_of(len(self._roster)))
        if not survivors <= self._included or self.number not in survivors or len(survivors) < least:
            raise Refused("it was asked to uncover a sum of too few sites")
        return {site: self._received[site][0 if site in survivors else 1] for site in sorted(self._included)}

    def _once(self, step: str) -> None:
        if step in self._done:
            raise Refused(f"it was asked for the step {step} of one sum twice")
        self._done.add(step)

    def _check_roster(self, roster: Mapping[int, Publics]) -> None:
        if len(roster) < LEAST_SITES:
            raise Refused(f"with fewer than {LEAST_SITES} sites the sum shows a single site's update")
        if roster.get(self.number) != self.publics():
            raise Refused("its own keys are not among those of the sum")
        if len({key for publics in roster.values() for key in publics}) < 2 * len(roster):
            raise Refused("two sites have the same key")

    def _box(self, other: int) -> bytes:
        return self._boxes.shared_with(self._roster[other][1])

    def _box_label(self, sender: int, receiver: int) -> str:
        return f"{self.label}, {sender} to {receiver}"


def take_off(
    masked: Mapping[int, Levels],
    roster: Mapping[int, Publics],
    included: Set[int],
    answers: Mapping[int, Mapping[int, int]],
    digests: Mapping[int, str],
    label: str,
) -> tuple[Levels, set[int]]:
    """The sum of the updates that came, and the sites that gave wrong shares.

    Args:
        masked: by the site it came from.
        included: the sites with which masks were made; those without an update were lost.
        answers: of ``Member.unmask``, by the site that gave them.
        digests: of each site's own mask, as ``Member.digest``.

    Raises:
        DealtWrongly: a site's secret cannot be put together.
    """
    total = sum_of(list(masked.values()))
    wrong: set[int] = set()
    for site in sorted(included):
        is_right = _is_seed_of(digests[site]) if site in masked else _is_secret_of(roster[site])
        found = {number: answer[site] for number, answer in answers.items() if number not in wrong}
        secret, liars = _put_together(site, found, threshold_of(len(roster)), is_right)
        wrong |= liars
        if site in masked:
            total = total - masking.own_mask(secret, label, len(total))
            continue
        keys = Keys(secret)
        for other in masked:  # what the lost site would have added
            pair = keys.shared_with(roster[other][0])
            total = total + masking.pair_mask(site, other, pair, label, len(total))
    return total, wrong


def _is_seed_of(digest: str) -> Callable[[int], bool]:
    return lambda secret: _fits(secret) and masking.digest_of(secret) == digest


def _is_secret_of(publics: Publics) -> Callable[[int], bool]:
    return lambda secret: _fits(secret) and Keys(secret).public == publics[0]


def _fits(secret: int) -> bool:
    return secret.bit_length() <= shares.SECRET_BITS  # wrong shares often give twice as many


def _put_together(
    site: int, found: Mapping[int, int], threshold: int, is_right: Callable[[int], bool]
) -> tuple[int, set[int]]:
    """The secret of a site, and who gave wrong shares of it.

    Raises:
        DealtWrongly: no group of the sites that is large enough has shares that belong together.
    """
    secret = shares.join(found)
    if len(found) >= threshold and is_right(secret):
        return secret, set()
    choose, numbers = random.Random(site), sorted(found)  # noqa: S311 - it hides nothing
    for _ in range(_MOST_GROUPS if len(found) > threshold else 0):
        group = choose.sample(numbers, threshold)
        secret = shares.join({number: found[number] for number in group})
        if is_right(secret):
            others = {number: found[number] for number in group[1:]}
            return secret, {
                number
                for number in set(numbers) - set(group)
                if shares.join({**others, number: found[number]}) != secret
            }
    raise DealtWrongly(site)


def sum_of(masked: Sequence[Levels]) -> Levels:
    """The sum of updates as they came."""
    total = np.zeros_like(masked[0])
    for each in masked:
        total = total + each
    return total
