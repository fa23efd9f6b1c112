"""Cross-validation: trains a model on all folds but one, and scores it on that one."""

from collections.abc import Callable

import torch
from torch import nn

from training.recipes.measure import Metric, Score, metrics_of, score
from training.recipes.named import Batch, RecipeError, Samples


def cross_validate(
    build: Callable[[], nn.Module], train: Callable[[nn.Module, Samples], object], data: Samples, count: int
) -> list[Metric]:
    """The metrics over all samples, each scored by a model that was not trained on it.

    Raises:
        RecipeError: there are fewer samples than folds.
    """
    batches = list(data.on(torch.device("cpu")))  # only one batch has to fit beside a model on a GPU
    inputs = tuple(torch.cat(parts) for parts in zip(*(each for each, _ in batches), strict=True))
    targets = torch.cat([each for _, each in batches])
    if not 2 <= count <= len(targets):
        raise RecipeError(
            f"{count} folds cannot be made of {len(targets)} samples; use 2 or more, at most one a sample."
        )
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    size = max(1, len(batches[0][1]))
    scored: dict[str, list[torch.Tensor]] = {}
    for fold in range(count):
        held, rest = (
            order[fold::count],
            torch.cat([order[each::count] for each in range(count) if each != fold]),
        )
        model = build()
        model.train()
        train(model, _part(inputs, targets, rest, size, data.device))
        model.eval()
        for each in score(model, _part(inputs, targets, held, size, data.device)):
            scored.setdefault(each.name, []).append(each.values)
    return metrics_of([Score(name, torch.cat(parts)) for name, parts in scored.items()])


def _part(
    inputs: tuple[torch.Tensor, ...],
    targets: torch.Tensor,
    chosen: torch.Tensor,
    size: int,
    device: torch.device | None,
) -> Samples:
    batches: list[Batch] = [
        (tuple(each[part] for each in inputs), targets[part]) for part in torch.split(chosen, size)
    ]
    return Samples(lambda: iter(batches), device)
