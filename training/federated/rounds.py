"""The server of federated rounds: sends weights to the sites, and adds up what they send."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from training.federated import masking
from training.federated.answers import Sealed, accused_of, levels_of, publics_of, sealed_of, shares_of
from training.federated.correspondence import Correspondence, Lost
from training.federated.masking import LEAST_SITES, Levels
from training.federated.messages import Message, Unreadable
from training.federated.places import Sites
from training.federated.privacy import Spent
from training.federated.secure import DealtWrongly, Publics, take_off, threshold_of
from training.federated.site import Local, check
from training.recipes.named import RecipeError

T = TypeVar("T")


class TooFewSites(RecipeError):
    """With the sites that are left, a sum would show too much of each."""


class _NotEnough(Exception):
    """A sum lost too many sites to take its masks off; it begins again among the others."""


@dataclass(slots=True)
class Server:
    """Averages the updates of sites, which it sees only as sums (FedAvg; McMahan et al., 2017).

    Args:
        patience_s: how long a site may take for each answer.
        log: keeps every message that the server received; for those who want to check what it sees.
    """

    local: Local
    model: nn.Module
    sites: Sites
    patience_s: float = 600.0
    log: list[tuple[int, Message]] | None = None
    spent: Spent = field(default_factory=Spent)
    summed: int = 0  # sites in the newest sum
    unusable: list[int] = field(default_factory=list)  # rounds whose sum said nothing, so the model stayed
    _line: Correspondence = field(init=False)

    def __post_init__(self) -> None:
        check(self.local)
        self._line = Correspondence(self.sites, self.patience_s, self.log)

    def __enter__(self) -> "Server":
        """Wait until each site has come, or has ended before it came.

        Raises:
            TooFewSites: fewer than three came.
        """
        self._line.open(self.local)
        self._require_enough(self.numbers)
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def round(self, number: int) -> None:
        """Run one round: every site trains, and the mean of their updates is added to the model.

        Raises:
            TooFewSites: fewer than three sites are left.
        """
        self._line.round = number
        self._line.readmit()
        weights = parameters_to_vector(self.model.parameters()).detach().float()
        asked = len(self.numbers)
        trained = self._train(weights)
        total = self._sum_among(trained, len(weights) + 1)
        if self.local.privacy is not None:  # each survivor added its share of the noise
            self.spent.add(self.local.privacy, self.summed / asked)
        if not total[-1] > 0:
            self.unusable.append(number)  # only a site that lies can do this, and masks hide which
            return
        update = total[:-1] / total[-1]
        with torch.no_grad():
            vector_to_parameters(weights + update.float(), self.model.parameters())

    @property
    def numbers(self) -> list[int]:
        """The sites that take part."""
        return sorted(self._line.runs)

    @property
    def lost(self) -> list[Lost]:
        """The sites that were left out so far, in their order."""
        return self._line.lost

    def _train(self, weights: Tensor) -> list[int]:
        """Let every site train; those that cannot send an update are left out before any mask is made."""
        asked = self.numbers
        data = weights.numpy().tobytes()
        request = Message("train", {"label": self._label(), "sites": len(asked)}, data)
        return sorted(self._line.ask(dict.fromkeys(asked, request), "trained"))

    def _sum_among(self, trained: list[int], count: int) -> Tensor:
        """The sum of the sites that stay to its end; each time that it begins again, fewer are left.

        Raises:
            TooFewSites: fewer than three sites are left.
            RecipeError: it began again though no site was left out.
        """
        for _ in range(len(trained) + 1):
            self._require_enough(trained)
            try:
                total, self.summed = self._sum(trained, count)
            except _NotEnough:
                trained = [site for site in trained if site in self._line.runs]
            else:
                return total
        raise RecipeError(f"Round {self._line.round} cannot be summed: it began again too often.")

    def _sum(self, trained: list[int], count: int) -> tuple[Tensor, int]:
        """The sum of the sites' updates with that of their weights, and how many sites it is of."""
        label = self._label()
        roster = self._keys(trained, label)
        sealed = self._shares(roster, label)
        masked = self._masked(roster, sealed, label, count)
        answers = self._ask_all(
            masked,
            "unmask",
            lambda _: {"label": label, "survivors": sorted(masked)},
            threshold_of(len(roster)),
            lambda _, answer: shares_of(answer, sealed.keys()),
        )
        try:
            digests = {site: each.digest for site, each in sealed.items()}
            total, wrong = take_off(masked, roster, sealed.keys(), answers, digests, label)
        except DealtWrongly as error:
            if len(answers) <= threshold_of(len(roster)):  # any of them can have given the wrong one
                raise RecipeError(f"Round {self._line.round} cannot be summed: {error}.") from error
            self._line.lose(error.site, "the shares that it sent do not belong together")
            raise _NotEnough from error
        for site in wrong:
            self._line.lose(site, "it gave a wrong share of another site")
        return masking.from_levels(total), len(masked)

    def _keys(self, trained: list[int], label: str) -> dict[int, Publics]:
        roster = self._ask_all(
            trained, "keys", lambda _: {"label": label}, LEAST_SITES, lambda _, answer: publics_of(answer)
        )
        taken: set[int] = set()
        for site, publics in sorted(roster.items()):
            if not taken.isdisjoint(publics):
                self._line.lose(site, "it sent the key of another site")
                del roster[site]
            taken.update(publics)
        return self._enough(roster, LEAST_SITES)

    def _shares(self, roster: Mapping[int, Publics], label: str) -> dict[int, Sealed]:
        return self._ask_all(
            roster,
            "share",
            lambda _: {"label": label, "roster": roster},
            self._least(roster),
            lambda site, answer: sealed_of(answer, roster.keys() - {site}),
        )

    def _masked(
        self, roster: Mapping[int, Publics], sealed: Mapping[int, Sealed], label: str, count: int
    ) -> dict[int, Levels]:
        def request(site: int) -> dict[str, object]:
            return {
                "label": label,
                "sealed": {other: sealed[other].shares[site] for other in sealed if other != site},
            }

        def read(site: int, answer: Message) -> Levels | frozenset[int]:
            return accused_of(answer, sealed.keys() - {site}) or levels_of(answer, count)

        answers = self._ask_all(sealed, "mask", request, self._least(roster), read)
        accused = {site: answer for site, answer in answers.items() if isinstance(answer, frozenset)}
        if accused:
            self._settle(accused, len(answers))
            raise _NotEnough  # some shares are unread, so the sum begins again without who is at fault
        return {site: answer for site, answer in answers.items() if not isinstance(answer, frozenset)}

    def _settle(self, accused: Mapping[int, Set[int]], answers: int) -> None:
        """Lose the sites whose shares most others could not read, else those who said so."""
        for site in sorted(set().union(*accused.values())):
            by = [other for other, sites in accused.items() if site in sites]
            if 2 * len(by) >= answers - 1:
                self._line.lose(site, "the other sites could not read its shares")
            else:
                for other in by:
                    self._line.lose(other, f"it says that it cannot read the share of site {site}")

    def _least(self, roster: Mapping[int, Publics]) -> int:
        return max(LEAST_SITES, threshold_of(len(roster)))

    def _label(self) -> str:
        return f"round {self._line.round}, {secrets.token_hex(8)}"

    def _ask_all(
        self,
        numbers: Iterable[int],
        kind: str,
        facts: Callable[[int], Mapping[str, object]],
        least: int,
        read: Callable[[int, Message], T],
    ) -> dict[int, T]:
        """Ask sites for one step; a site whose answer cannot be read is lost.

        Raises:
            _NotEnough: fewer than ``least`` answered.
        """
        requests = {
            number: Message(kind, dict(facts(number))) for number in numbers if number in self._line.runs
        }
        answers: dict[int, T] = {}
        for number, answer in self._line.ask(requests, kind).items():
            try:
                answers[number] = read(number, answer)
            except Unreadable as error:
                self._line.lose(number, str(error))
        return self._enough(answers, least)

    def _enough(self, answers: dict[int, T], least: int) -> dict[int, T]:
        if len(answers) < least:
            raise _NotEnough
        return answers

    def _require_enough(self, numbers: list[int]) -> None:
        if len(numbers) < LEAST_SITES:
            raise TooFewSites(
                f"{len(numbers)} of {self.local.sites} sites are left, and with fewer than {LEAST_SITES} a sum shows "
                f"a single site's update. {' '.join(map(str, self.lost))}".strip()
            )
