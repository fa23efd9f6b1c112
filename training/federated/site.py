"""A site: trains on its own data from the server's weights, and sends a masked update."""

import math
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from training.federated import masking
from training.federated.channels import Channel, Gone, wait_for
from training.federated.masking import Refused
from training.federated.messages import Message, Unreadable, by_site
from training.federated.privacy import Privacy
from training.federated.secure import Member, SharesUnreadable
from training.recipes import named
from training.recipes.named import Samples


@dataclass(frozen=True, slots=True)
class Local:
    """How a site trains in a round; ``proximal`` above 0 is FedProx (Li et al., 2020), else it is FedAvg."""

    model: str
    data: str
    data_path: str | None
    sites: int
    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.05
    proximal: float = 0.0
    privacy: Privacy | None = None
    seed: int = 0


def serve(local: Local, number: int, channel: Channel, run: str | None = None) -> None:
    """Take part until the server ends the rounds; the entry of a site's program.

    Args:
        run: a name of this process; None makes one.
    """
    try:
        model, data = prepared(local, number)
        Site(local, number, model, data, channel, run).run()
    finally:  # an error must close it, or the server would wait
        channel.close()


def prepared(local: Local, number: int) -> tuple[nn.Module, Samples]:
    """The untrained model and the data of one site, by its owner's code, which may take long."""
    torch.set_num_threads(1)
    torch.manual_seed(local.seed * 1_000 + number)
    return named.build_model(local.model), site_data(local, number)


class Site:
    """A site's side of all rounds; it answers each request of the server with one message."""

    def __init__(
        self,
        local: Local,
        number: int,
        model: nn.Module,
        data: Samples,
        channel: Channel,
        run: str | None = None,
    ) -> None:
        self.local, self.number = local, number
        self._model, self._data, self._channel = model, data, channel
        self._run = run or secrets.token_hex(
            8
        )  # requests to an earlier process of this site are not for this one
        self._update: tuple[Tensor, int] | None = None
        self._member: Member | None = None
        self._steps: dict[str, Callable[[Message], Message]] = {
            "train": self._train,
            "keys": self._keys,
            "share": self._share,
            "mask": self._mask,
            "unmask": self._unmask,
        }

    def run(self) -> None:
        """Answer until the server ends the rounds or is gone."""
        self._send(Message("hello", {}))
        while True:
            try:
                request = wait_for(self._channel)
            except Gone as error:
                sys.stdout.write(f"No further rounds: {str(error).rstrip('.')}.\n")
                return
            if request.kind == "end":
                if why := request.facts.get("why"):
                    sys.stdout.write(f"The server ended this site's part: {why}.\n")
                return
            if request.kind == "call":
                self._send(Message("hello", {}))
            elif request.facts.get("to") == self._run and request.kind in self._steps:
                self._send(self._answer(request))

    def _answer(self, request: Message) -> Message:
        label = request.facts.get("label")
        try:
            answer = self._steps[request.kind](request)
        except (Refused, Unreadable) as error:
            return Message("refused", {"label": label, "why": str(error)})
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            if request.kind == "train":  # the owner's code, whose error is the job's
                raise
            why = f"it cannot read the server's request: {error.__class__.__name__}"
            return Message("refused", {"label": label, "why": why})
        return Message(answer.kind, {**answer.facts, "label": label}, answer.data)

    def _send(self, message: Message) -> None:
        self._channel.send(Message(message.kind, {**message.facts, "from": self._run}, message.data))

    def _train(self, request: Message) -> Message:
        """Train, and check the update before anything of it is sent."""
        start = self._weights(request)
        update, count = train(self._model, self._data, start, self.local)
        if count == 0:
            raise Refused("it has no data")
        if self.local.privacy is not None:
            update = self.local.privacy.protect(update, self._asked(request))
        self._update = update, count
        self._levels()
        return Message("trained", {})

    def _weights(self, request: Message) -> Tensor:
        """The server's weights, if they fit this site's model."""
        here = sum(each.numel() for each in self._model.parameters())
        if len(request.data) != 4 * here:
            raise Refused(f"its model has {here:,} values, and the server's has {len(request.data) // 4:,}")
        return torch.frombuffer(bytearray(request.data), dtype=torch.float32)

    def _asked(self, request: Message) -> int:
        """How many sites share the noise; more than there are would make each share too small."""
        asked = int(request.facts["sites"])
        if not masking.LEAST_SITES <= asked <= self.local.sites:
            raise Refused(
                f"it was asked to share the noise of {asked} sites, and there are {self.local.sites}"
            )
        return asked

    def _levels(self) -> masking.Levels:
        """The update weighted by the site's samples; with privacy all sites weigh the same, or one could weigh more."""
        if self._update is None:
            raise Refused("it has not trained yet")
        update, count = self._update
        weight = 1 if self.local.privacy else count
        weighted = torch.cat([update.double() * weight, torch.tensor([float(weight)])])
        return masking.to_levels(weighted, self.local.sites)

    def _keys(self, request: Message) -> Message:
        self._member = Member(self.number, str(request.facts["label"]), self._levels())
        return Message("keys", {"publics": self._member.publics()})

    def _share(self, request: Message) -> Message:
        roster = {
            site: (int(each[0]), int(each[1])) for site, each in by_site(request.facts["roster"]).items()
        }
        member = self._of(request)
        return Message("share", {"sealed": member.share(roster), "digest": member.digest()})

    def _mask(self, request: Message) -> Message:
        try:
            masked = self._of(request).mask(by_site(request.facts["sealed"]))
        except SharesUnreadable as error:
            return Message("mask", {"unreadable": error.sites})
        return Message("mask", {}, masked.tobytes())

    def _unmask(self, request: Message) -> Message:
        survivors = frozenset(int(each) for each in request.facts["survivors"])
        return Message("unmask", {"shares": self._of(request).unmask(survivors)})

    def _of(self, request: Message) -> Member:
        if self._member is None or self._member.label != request.facts["label"]:
            raise Refused("it was asked for a step of another sum")
        return self._member


def site_data(local: Local, number: int) -> Samples:
    """The data of one site: what the owner's function returns for its number, as batches."""
    function = named.find_function(local.data, "site_data")
    words: list[Any] = [number, local.sites]
    if local.data_path is not None:
        words.append(local.data_path)
    return named.samples_of(local.data, function(*words), local.batch_size, shuffled=True)


def train(model: nn.Module, data: Samples, start: Tensor, local: Local) -> tuple[Tensor, int]:
    """Train from the server's weights; returns the change of the weights, and the number of samples."""
    with torch.no_grad():
        vector_to_parameters(start.clone(), model.parameters())
    anchors = [each.detach().clone() for each in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=local.learning_rate, momentum=0.9)
    model.train()
    count = 0
    for epoch in range(local.epochs):
        for inputs, targets in data:
            loss = _loss(model(*inputs), targets)
            if local.proximal:
                far = sum(
                    ((own - anchor) ** 2).sum()
                    for own, anchor in zip(model.parameters(), anchors, strict=True)
                )
                loss = loss + local.proximal / 2 * far
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            count += len(targets) if epoch == 0 else 0
    return parameters_to_vector(model.parameters()).detach() - start, count


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return functional.mse_loss(outputs, targets)
    return functional.cross_entropy(outputs, targets)


def check(local: Local) -> None:
    """Check a site's settings.

    Raises:
        named.RecipeError: a number out of its range.
    """
    if local.sites < masking.LEAST_SITES:
        raise named.RecipeError(
            f"{local.sites} sites are too few: with fewer than {masking.LEAST_SITES} the sum shows a single site's update."
        )
    if not (math.isfinite(local.proximal) and local.proximal >= 0):
        raise named.RecipeError("--proximal is 0 for FedAvg, or above 0 for FedProx.")
