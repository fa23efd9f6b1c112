"""A site: trains on its own data from the server's weights, and sends a masked update."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from training.federated import masking
from training.federated.privacy import Privacy
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


class Work(NamedTuple):
    """A round's weights for a site, and the sites that take part with their keys."""

    label: str
    weights: bytes
    publics: Mapping[int, int]


class Sent(NamedTuple):
    """What a site sends: a masked update with its masked weight, or the reason why not."""

    site: int
    label: str
    masked: bytes
    refused: str


def serve(local: Local, number: int, pipe: Connection) -> None:
    """Take part until the server closes the connection; the entry of a site's process."""
    with pipe:  # an error must close it, or the server would wait
        torch.set_num_threads(1)
        torch.manual_seed(local.seed * 1_000 + number)
        keys = masking.Keys()
        model = named.build_model(local.model)
        data = site_data(local, number)
        pipe.send(keys.public)
        _train_and_send(local, number, keys, model, data, pipe)


def _train_and_send(
    local: Local, number: int, keys: masking.Keys, model: nn.Module, data: Samples, pipe: Connection
) -> None:
    trained: tuple[str, Tensor, int] | None = None
    while True:
        try:
            work: Work = pipe.recv()
        except EOFError:
            return
        digest = hashlib.sha256(work.weights).hexdigest()
        if trained is None or trained[0] != digest:  # a round that is tried again needs only other masks
            start = torch.frombuffer(bytearray(work.weights), dtype=torch.float32)
            update, count = train(model, data, start, local)
            trained = digest, _protected(update, local), count
        pipe.send(_answer(work, number, keys, trained[1], trained[2], local))


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


def _protected(update: Tensor, local: Local) -> Tensor:
    return update if local.privacy is None else local.privacy.protect(update, local.sites)


def _answer(work: Work, number: int, keys: masking.Keys, update: Tensor, count: int, local: Local) -> Sent:
    """A masked update, weighted by the site's samples; with privacy all sites weigh the same, or one could weigh more."""
    weight = 1 if local.privacy else count
    try:
        levels = masking.to_levels(
            torch.cat([update.double() * weight, torch.tensor([float(weight)])]), local.sites
        )
        masked = masking.mask(levels, number, keys, work.publics, work.label)
    except masking.Refused as error:
        return Sent(number, work.label, b"", str(error))
    return Sent(number, work.label, masked.tobytes(), "")


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
