"""Recipes that make another model: weights of few bits, pruned, distilled, averaged."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from training.config import TrainConfig
from training.data import move_to
from training.recipes.low_bits import Bits, keep_in, train_with
from training.recipes.measure import answer, device_of
from training.recipes.named import RecipeError, Samples
from training.strategies.choose import choose_device
from training.trainer import Trainer

LEAST_QUANTIZED = 64  # numbers of a weight; smaller ones would not shrink
_PRUNED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
SOFTNESS = 2.0  # temperature of the teacher's answers (Hinton et al., 2015)
FROM_TEACHER = 0.7  # share of the loss

Train = Callable[[nn.Module, Samples], object]


@dataclass(frozen=True, slots=True)
class Changed:
    """A new model, with what only its recipe tells."""

    model: nn.Module
    facts: dict[str, float | str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def quantize(
    model: nn.Module, bits: Bits = 8, *, train: Train | None = None, data: Samples | None = None
) -> Changed:
    """Keep each weight matrix as int8 or int4 with scales; recurrent layers stay as they are.

    Args:
        train: trains the model while it computes with rounded weights (quantization-aware training; Jacob et al.,
            2018), before they are kept.

    Raises:
        RecipeError: the model has no weight that can be kept so.
    """
    quantized = deepcopy(model)
    chosen, left_out = _matrices(quantized)
    if not chosen:
        raise RecipeError(f"The model has no weight matrix that could be kept as int{bits}.")
    facts: dict[str, float | str] = {f"int{bits} weights": len(chosen)}
    if train is not None and data is not None:
        for module, name in chosen:
            train_with(bits, module, name)
        quantized.train()
        train(quantized, data)
        for module, name in chosen:
            parametrize.remove_parametrizations(module, name, leave_parametrized=False)
        facts["trained with rounded weights"] = "yes"
    for module, name in chosen:
        keep_in(bits, module, name)
    return Changed(quantized, facts, left_out)


def _matrices(model: nn.Module) -> tuple[list[tuple[nn.Module, str]], list[str]]:
    """The weights to quantize, and the weights of recurrent layers, which read them in their own way."""
    chosen, left_out = [], []
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.ndim < 2 or weight.numel() < LEAST_QUANTIZED or not weight.is_floating_point():
                continue
            if isinstance(module, nn.RNNBase):
                left_out.append(f"{path}.{name} ({type(module).__name__})")
            else:
                chosen.append((module, name))
    return chosen, left_out


def prune_weights(
    model: nn.Module, share: float, *, structured: bool, fine_tune: Train | None, data: Samples | None
) -> Changed:
    """Set the smallest weights to zero, over the whole model or whole output channels of each layer.

    Args:
        share: of the weights, above 0 and below 1.
        fine_tune: trains the pruned model; pruned weights stay zero.

    Raises:
        RecipeError: the model has no layer that can be pruned.
    """
    pruned = deepcopy(model)
    layers = [module for module in pruned.modules() if isinstance(module, _PRUNED)]
    if not layers:
        raise RecipeError("The model has no linear, convolution or embedding layer to prune.")
    masks = _channel_masks(layers, share) if structured else _weight_masks(layers, share)
    for layer, mask in masks:
        parametrize.register_parametrization(layer, "weight", _Masked(mask))
    if fine_tune is not None and data is not None:
        pruned.train()
        fine_tune(pruned, data)
    for layer, _ in masks:
        parametrize.remove_parametrizations(layer, "weight")
    total = sum(layer.weight.numel() for layer in layers)
    zeros = sum(int((layer.weight == 0).sum()) for layer in layers)
    return Changed(pruned, {"zeros_percent": round(100 * zeros / total, 1)})


class _Masked(nn.Module):
    """Keeps pruned weights at zero; unlike a hook, also where the weight is read without calling its layer."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


def _weight_masks(layers: Sequence[nn.Module], share: float) -> list[tuple[nn.Module, Tensor]]:
    """Masks of the largest weights of all layers together."""
    sizes = torch.cat([_weight(layer).abs().flatten().cpu() for layer in layers])
    least = sizes.kthvalue(max(1, round(share * len(sizes)))).values
    return [(layer, (_weight(layer).abs() > least.to(_weight(layer).device)).float()) for layer in layers]


def _channel_masks(layers: Sequence[nn.Module], share: float) -> list[tuple[nn.Module, Tensor]]:
    """Masks of the output channels with the largest norm; the last layer's outputs are the answers, and stay."""
    masks = []
    for layer in layers[:-1] or layers:
        norms = _weight(layer).flatten(1).norm(dim=1)
        pruned = norms.argsort()[: min(len(norms) - 1, round(share * len(norms)))]
        mask = torch.ones_like(_weight(layer))
        mask[pruned] = 0
        masks.append((layer, mask))
    return masks


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    if not isinstance(weight, Tensor):
        raise RecipeError(f"{type(layer).__name__} has no weight to prune.")
    return weight.detach()


class _Pairs(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """The samples of batches, one by one, for the trainer."""

    def __init__(self, samples: Samples) -> None:
        batches = list(samples.on(torch.device("cpu")))  # from where the trainer moves each batch
        if any(len(inputs) != 1 for inputs, _ in batches):
            raise RecipeError("Distillation trains models with one input; this data has several.")
        self.inputs = torch.cat([inputs[0] for inputs, _ in batches])
        self.targets = torch.cat([targets for _, targets in batches])

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # type: ignore[override]
        return self.inputs[index], (self.inputs[index], self.targets[index])


def distil(teacher: nn.Module, student: nn.Module, data: Samples, config: TrainConfig) -> Changed:
    """Train a smaller model on the teacher's answers and the targets (Hinton et al., 2015)."""
    teacher.eval().requires_grad_(False).to(choose_device())  # where the trainer has the student
    Trainer(config).fit(student, _Pairs(data), loss_fn=loss_of_lessons(teacher))
    return Changed(student, {"student_parameters": sum(each.numel() for each in student.parameters())})


def loss_of_lessons(teacher: nn.Module) -> Callable[[Tensor, tuple[Tensor, Tensor]], Tensor]:
    """Return the loss against the teacher's answers; its targets are the inputs and the true targets.

    The teacher stays where it is, because the planner calls the loss with tensors that have no data, on any device: a
    teacher that moved to them would lose its weights.
    """
    device = device_of(teacher)

    def loss(outputs: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = wanted
        with torch.no_grad():
            lesson = move_to(teacher(move_to(inputs, device)), outputs.device)
        return distillation_loss(outputs, lesson, targets)

    return loss


def distillation_loss(outputs: Tensor, lesson: Tensor, targets: Tensor) -> Tensor:
    """The distance to the teacher's answers and to the targets; classes are on the last dimension."""
    if targets.is_floating_point():
        own = functional.mse_loss(outputs.reshape(targets.shape), targets)
        return FROM_TEACHER * functional.mse_loss(outputs, lesson) + (1 - FROM_TEACHER) * own
    classes = outputs.shape[-1]
    soft = functional.kl_div(
        functional.log_softmax(outputs.reshape(-1, classes) / SOFTNESS, -1),
        functional.log_softmax(lesson.reshape(-1, classes) / SOFTNESS, -1),
        reduction="batchmean",
        log_target=True,
    )
    own = functional.cross_entropy(outputs.reshape(-1, classes), targets.reshape(-1).long())
    return FROM_TEACHER * SOFTNESS**2 * soft + (1 - FROM_TEACHER) * own


def average(weights: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of the weights of several models of one shape; whole numbers are taken from the first.

    Raises:
        RecipeError: they have other names or shapes, or there is only one.
    """
    if len(weights) < 2:
        raise RecipeError("An average needs two models or more; name the others with --with.")
    first = weights[0]
    for other in weights[1:]:
        for name in first.keys() | other.keys():
            if name not in first or name not in other or first[name].shape != other[name].shape:
                raise RecipeError(f"The models cannot be averaged: {name} is not the same in all of them.")
    return {
        name: _mean([each[name] for each in weights]) if value.is_floating_point() else value
        for name, value in first.items()
    }


class Ensemble(nn.Module):
    """Answers with the mean of its members' answers: of probabilities for classes, else of the numbers themselves."""

    def __init__(self, members: Sequence[nn.Module], *, classes: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.classes = classes

    def forward(self, *inputs: Tensor) -> Tensor:
        answers = torch.stack([answer(member, inputs).float() for member in self.members])
        if not self.classes:
            return answers.mean(0)
        # The logarithm of the mean probability, so that it can be read as logits are.
        return answers.log_softmax(-1).logsumexp(0) - math.log(len(answers))


def _mean(values: Iterable[Tensor]) -> Tensor:
    stacked = torch.stack(list(values))
    return stacked.float().mean(0).to(stacked.dtype)
