"""The server of federated rounds: sends weights to the sites, and adds up what they send."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from training.federated import masking
from training.federated.correspondence import Correspondence, Lost
from training.federated.masking import LEAST_SITES, Levels, Refused
from training.federated.messages import Message, by_site
from training.federated.places import Sites
from training.federated.privacy import Spent
from training.federated.secure import Publics, take_off, threshold_of
from training.federated.site import Local, check
from training.recipes.named import RecipeError


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
        while True:
            self._require_enough(trained)
            try:
                total, self.summed = self._sum(trained, len(weights) + 1)
                break
            except _NotEnough:
                trained = [site for site in trained if site in self._line.runs]
        if self.local.privacy is not None:  # each survivor added its share of the noise
            self.spent.add(self.local.privacy, self.summed / asked)
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
        )
        found = {
            site: {key: int(value) for key, value in by_site(answer.facts["shares"]).items()}
            for site, answer in answers.items()
        }
        try:
            total = take_off(masked, roster, frozenset(sealed), list(found.values()), list(found), label)
        except (Refused, KeyError) as error:
            raise RecipeError(f"Round {self._line.round} cannot be summed: {error}.") from error
        return masking.from_levels(total), len(masked)

    def _keys(self, trained: list[int], label: str) -> dict[int, Publics]:
        answers = self._ask_all(trained, "keys", lambda _: {"label": label}, LEAST_SITES)
        return {
            site: (int(each.facts["publics"][0]), int(each.facts["publics"][1]))
            for site, each in answers.items()
        }

    def _shares(self, roster: Mapping[int, Publics], label: str) -> dict[int, dict[int, str]]:
        """By site, the sealed shares that it sent for each other site."""
        answers = self._ask_all(
            roster, "share", lambda _: {"label": label, "roster": roster}, self._least(roster)
        )
        return {site: by_site(answer.facts["sealed"]) for site, answer in answers.items()}

    def _masked(
        self, roster: Mapping[int, Publics], sealed: Mapping[int, Mapping[int, str]], label: str, count: int
    ) -> dict[int, Levels]:
        def request(site: int) -> dict[str, object]:
            return {
                "label": label,
                "sealed": {other: sealed[other][site] for other in sealed if other != site},
            }

        answers = self._ask_all(sealed, "mask", request, self._least(roster))
        for site in [site for site, answer in answers.items() if len(answer.data) != 8 * count]:
            self._line.lose(site, "its update has another size than the model")
            del answers[site]
        if len(answers) < self._least(roster):
            raise _NotEnough
        return {site: np.frombuffer(answer.data, np.uint64) for site, answer in answers.items()}

    def _least(self, roster: Mapping[int, Publics]) -> int:
        return max(LEAST_SITES, threshold_of(len(roster)))

    def _label(self) -> str:
        return f"round {self._line.round}, {secrets.token_hex(8)}"

    def _ask_all(
        self, numbers: Iterable[int], kind: str, facts: Callable[[int], Mapping[str, object]], least: int
    ) -> dict[int, Message]:
        """Ask sites for one step.

        Raises:
            _NotEnough: fewer than ``least`` answered.
        """
        requests = {
            number: Message(kind, dict(facts(number))) for number in numbers if number in self._line.runs
        }
        answers = self._line.ask(requests, kind)
        if len(answers) < least:
            raise _NotEnough
        return answers

    def _require_enough(self, numbers: list[int]) -> None:
        if len(numbers) < LEAST_SITES:
            raise TooFewSites(
                f"{len(numbers)} of {self.local.sites} sites are left, and with fewer than {LEAST_SITES} a sum shows "
                f"a single site's update. {' '.join(map(str, self.lost))}".strip()
            )
