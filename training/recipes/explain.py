"""Explains answers of a model: which inputs they depend on, as pictures and tables on the job's page."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.recipes import layers
from training.recipes.measure import answer
from training.recipes.named import Batch, RecipeError
from training.report import default_reporter

STEPS = 32  # of the path from nothing to the input
MOST_FEATURES = 50  # in a table


@dataclass(frozen=True, slots=True)
class Explanation:
    """Attributions of the chosen answer to each input, in the shape of the inputs."""

    integrated: Tensor
    saliency: Tensor
    answers: Tensor  # index of the class that is explained; 0 for a model with one output
    completeness_error: (
        float  # largest difference between the attributions' sum and what they should add up to
    )
    layer: str  # whose units ``conductance`` is of; empty for a model without such a layer
    conductance: Tensor | None  # in the shape of the layer's output
    has_channels: bool  # the layer is a convolution, whose units are channels
    through_layer: float  # share of the answers that flows through it; a residual path goes around it


def explain(model: nn.Module, batch: Batch, layer: str | None = None) -> Explanation:
    """Attribute answers to inputs by integrated gradients (Sundararajan et al., 2017) and by plain gradients.

    The units of a layer get their conductance (Dhamdhere et al., 2018): how much of the answer flows through them.
    Inputs that are whole numbers, such as tokens, are explained by what their embedding makes of them.

    Args:
        layer: name of a module; default: the last convolution or linear layer before the head.

    Raises:
        RecipeError: the model has several inputs, whole numbers without an embedding, or no such layer.
    """
    inputs, _ = batch
    if len(inputs) != 1:
        raise RecipeError("Explanations are for models with one input; this one has several.")
    model = model.eval()
    forward, start = _differentiable(model, inputs[0])
    with torch.no_grad():
        outputs = _by_class(forward(start))
    answers = outputs.argmax(1)

    def chosen(values: Tensor) -> Tensor:
        return _by_class(forward(values)).gather(1, answers[:, None]).squeeze(1)

    saliency = _gradient(chosen, start).abs()
    integrated = _integrated(chosen, start)
    with torch.no_grad():
        expected = chosen(start) - chosen(torch.zeros_like(start))
    error = (integrated.flatten(1).sum(1) - expected).abs().max()
    if not inputs[0].is_floating_point():
        integrated, saliency = integrated.sum(-1), saliency.sum(-1)
    name = layer or layers.before_head(model, lambda: forward(start.detach().requires_grad_()))
    if name is None:
        return Explanation(integrated, saliency, answers, float(error), "", None, False, 0.0)
    conductance = layers.conductance(model, name, chosen, start, STEPS)
    through = float(conductance.sum() / expected.sum()) if expected.sum() else 0.0
    return Explanation(
        integrated,
        saliency,
        answers,
        float(error),
        name,
        conductance,
        layers.has_channels(model, name),
        round(through, 3),
    )


def _by_class(outputs: Tensor) -> Tensor:
    """Outputs as (samples, classes); for a sequence, at its last position."""
    if outputs.ndim == 3:
        return outputs[:, -1]
    return outputs.reshape(len(outputs), -1)


def _differentiable(model: nn.Module, inputs: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The model as a function of numbers that have gradients, and these numbers for the inputs."""
    if inputs.is_floating_point():
        return lambda values: answer(model, (values,)).float(), inputs.detach()
    embedding = next((each for each in model.modules() if isinstance(each, nn.Embedding)), None)
    if embedding is None:
        raise RecipeError(
            "The inputs are whole numbers and the model has no embedding, so they have no gradients."
        )
    with torch.no_grad():
        start = embedding(inputs).detach()

    def forward(values: Tensor) -> Tensor:
        is_first = [True]

        def replace(_: nn.Module, __: object, made: Tensor) -> Tensor:
            if is_first.pop() if is_first else False:
                return values
            return made

        hook = embedding.register_forward_hook(replace)
        try:
            return answer(model, (inputs,)).float()
        finally:
            hook.remove()

    return forward, start


def _gradient(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    values = values.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(function(values).sum(), values)
    return gradient.detach()


def _integrated(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """The mean gradient on the straight path from zero, at the middle of each step, times the values."""
    total = torch.zeros_like(values)
    for step in range(STEPS):
        total += _gradient(function, values * ((step + 0.5) / STEPS))
    return values * total / STEPS


def show(explanation: Explanation, batch: Batch) -> int:
    """Report the explanations; returns how many pictures and tables there are."""
    reporter = default_reporter()
    inputs, count = batch[0][0], 0
    for index, (integrated, saliency) in enumerate(
        zip(explanation.integrated.cpu(), explanation.saliency.cpu(), strict=True)
    ):
        name = f"sample {index}, answer {int(explanation.answers[index])}"
        if integrated.ndim in (2, 3) and inputs.is_floating_point():
            reporter.report(1, image={f"integrated gradients, {name}": _picture(integrated)})
            reporter.report(1, image={f"saliency, {name}": _picture(saliency)})
            count += 2
        else:
            reporter.report(1, table={f"attributions, {name}": _rows(inputs[index], integrated, saliency)})
            count += 1
        if explanation.conductance is not None:
            title = f"conductance of {explanation.layer}, {name}"
            values = explanation.conductance[index].cpu().float()
            _show_conductance(title, values, inputs[index], has_channels=explanation.has_channels)
            count += 1
    return count


def _show_conductance(title: str, values: Tensor, sample: Tensor, *, has_channels: bool) -> None:
    """Report what flows through the layer: a picture over the input's own size, else the units that matter most."""
    is_image = sample.is_floating_point() and sample.ndim in (2, 3) and values.ndim == 3
    if is_image:
        size = tuple(sample.shape[-2:])
        picture = nn.functional.interpolate(_picture(values)[None, None], size=size, mode="nearest")[0, 0]
        default_reporter().report(1, image={title: picture})
        return
    default_reporter().report(1, table={title: rows_of_units(values, has_channels=has_channels)})


def rows_of_units(values: Tensor, *, has_channels: bool) -> list[dict[str, float]]:
    """The units of a layer that matter most for one sample.

    Of a convolution they are channels with all their positions, of another layer of a sequence positions with all
    their features.
    """
    several = "channel" if has_channels else "position"
    unit = "unit" if values.ndim == 1 else several
    flat = values if values.ndim == 1 else values.flatten(1).sum(1)
    order = flat.abs().argsort(descending=True)[:MOST_FEATURES].tolist()
    return [{unit: each, "conductance": float(flat[each])} for each in order]


def _picture(values: Tensor) -> Tensor:
    """Attributions as a grey picture from 0 to 1, summed over the channels."""
    values = values.abs().float()
    values = values.sum(0) if values.ndim == 3 else values
    return values / values.max().clamp_min(1e-12)


def _rows(inputs: Tensor, integrated: Tensor, saliency: Tensor) -> list[dict[str, float]]:
    """The inputs that matter most, by the size of their attribution."""
    flat = integrated.flatten()
    order = flat.abs().argsort(descending=True)[:MOST_FEATURES].tolist()
    values, slopes = inputs.flatten(), saliency.flatten()
    return [
        {
            "input": each,
            "value": float(values[each]),
            "integrated gradient": float(flat[each]),
            "saliency": float(slopes[each]),
        }
        for each in order
    ]
