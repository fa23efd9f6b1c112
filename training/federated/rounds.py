"""The server of federated rounds: sends weights to the sites, and adds up what they send."""

import multiprocessing
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from training.federated import masking
from training.federated.masking import LEAST_SITES
from training.federated.site import Local, Sent, Work, check, serve
from training.recipes.named import RecipeError


class Running(Protocol):
    """What the server needs of a site's process."""

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...

    def kill(self) -> None: ...


Start = Callable[[int, Connection], Running]


class TooFewSites(RecipeError):
    """With the sites that are left, a sum would show too much of each."""


@dataclass(slots=True)
class Site:
    """A site as the server knows it."""

    number: int
    pipe: Connection
    process: Running
    public: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """A site that takes no further part, and why."""

    site: int
    round: int
    why: str

    def __str__(self) -> str:
        return f"Site {self.site} is left out from round {self.round} on: {self.why}."


@dataclass(slots=True)
class Server:
    """Averages the updates of sites, which it sees only as sums (FedAvg; McMahan et al., 2017).

    Args:
        patience_s: how long a site may train in a round.
        log: keeps every message that the server received; for those who want to check what it sees.
    """

    local: Local
    model: nn.Module
    patience_s: float = 600.0
    start: Start | None = None
    lost: list[Lost] = field(default_factory=list)
    log: list[Sent] | None = None
    _sites: dict[int, Site] = field(default_factory=dict)

    def __enter__(self) -> "Server":
        """Start the sites, and learn their public keys.

        Raises:
            TooFewSites: fewer than three came.
        """
        check(self.local)
        for number in range(self.local.sites):
            ours, theirs = multiprocessing.Pipe()
            self._sites[number] = Site(number, ours, (self.start or self._start_process)(number, theirs))
        for number, public in self._receive(set(self._sites), 0).items():
            if isinstance(public, int):
                self._sites[number].public = public
        self._require_enough()
        return self

    def __exit__(self, *_: object) -> None:
        for site in self._sites.values():
            self._end(site)

    def round(self, number: int) -> None:
        """Run one round: every site trains, and the mean of their updates is added to the model.

        When a site is lost, the others send their updates again under fresh masks.

        Raises:
            TooFewSites: fewer than three sites are left.
        """
        weights = parameters_to_vector(self.model.parameters()).detach().float()
        tries = 0
        while True:
            tries += 1
            label = f"round {number}, try {tries}"
            total = self._sum_of(Work(label, weights.numpy().tobytes(), self._publics()), number)
            if total is not None:
                break
            self._require_enough()
        update = total[:-1] / total[-1]
        with torch.no_grad():
            vector_to_parameters(weights + update.float(), self.model.parameters())

    @property
    def numbers(self) -> list[int]:
        """The sites that take part."""
        return sorted(self._sites)

    def _start_process(self, number: int, pipe: Connection) -> Running:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=serve, args=(self.local, number, pipe), daemon=True)
        process.start()
        pipe.close()  # it is the site's alone, so its end is noticed
        return process

    def _publics(self) -> Mapping[int, int]:
        return {number: site.public for number, site in self._sites.items()}

    def _sum_of(self, work: Work, number: int) -> Tensor | None:
        """The sum of all sites' updates with that of their weights; None if a site was lost."""
        asked = set(self._sites)
        for site in list(self._sites.values()):
            try:
                site.pipe.send(work)
            except OSError:
                self._lose(site.number, number, "it has vanished")
        masked = []
        for sender, message in self._receive(asked & set(self._sites), number).items():
            if not isinstance(message, Sent) or message.label != work.label:
                self._lose(sender, number, "it sent something else than its update")
            elif message.refused:
                self._lose(sender, number, message.refused)
            elif len(message.masked) != 8 * (len(work.weights) // 4 + 1):
                self._lose(sender, number, "its update has another size than the model")
            else:
                masked.append(np.frombuffer(message.masked, np.uint64))
            if self.log is not None and isinstance(message, Sent):
                self.log.append(message)
        if set(self._sites) != asked:
            return None
        return masking.from_levels(masking.add(masked))

    def _receive(self, numbers: set[int], round_number: int) -> dict[int, object]:
        """One message of each site; sites that vanish or take too long are lost."""
        found: dict[int, object] = {}
        by_pipe = {self._sites[number].pipe: number for number in numbers}
        deadline_s = time.monotonic() + self.patience_s
        while by_pipe and (left_s := deadline_s - time.monotonic()) > 0:
            for pipe in wait(list(by_pipe), left_s):
                if not isinstance(pipe, Connection):
                    continue
                number = by_pipe.pop(pipe)
                try:
                    found[number] = pipe.recv()
                except (EOFError, OSError):
                    self._lose(number, round_number, "it has vanished")
        for number in by_pipe.values():
            self._lose(number, round_number, f"it did not answer within {self.patience_s:g} s")
        return found

    def _lose(self, number: int, round_number: int, why: str) -> None:
        """End a site, so that nothing is read that it sends late: with it the masks of the others could be taken off."""
        self._end(self._sites.pop(number))
        self.lost.append(Lost(number, round_number, why))

    def _end(self, site: Site) -> None:
        site.pipe.close()
        site.process.join(2)
        if site.process.is_alive():
            site.process.kill()
            site.process.join(5)

    def _require_enough(self) -> None:
        if len(self._sites) < LEAST_SITES:
            raise TooFewSites(
                f"{len(self._sites)} of {self.local.sites} sites are left, and with fewer than {LEAST_SITES} a sum shows "
                f"a single site's update. {' '.join(map(str, self.lost))}".strip()
            )
