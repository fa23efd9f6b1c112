"""What flows through a layer of a model: the layer that is looked at by default, and the conductance of its units."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.recipes.named import RecipeError

_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
MOST_NAMED = 8  # layers in a sentence


def before_head(model: nn.Module, run: Callable[[], object]) -> str | None:
    """The last convolution or linear layer that runs before the head; None where there is at most one.

    Args:
        run: makes the model answer, with gradients: without them some layers are computed by one fused function.
    """
    names: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: names.append(name))
        for name, module in model.named_modules()
        if isinstance(module, _KINDS)
    ]
    try:
        with torch.enable_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    ran = list(dict.fromkeys(names))
    return ran[-2] if len(ran) > 1 else None


def has_channels(model: nn.Module, name: str) -> bool:
    """Whether a layer answers each sample with channels before positions, as convolutions do."""
    return isinstance(model.get_submodule(name), _CONVOLUTIONS)


def conductance(
    model: nn.Module, name: str, chosen: Callable[[Tensor], Tensor], values: Tensor, steps: int
) -> Tensor:
    """How much of the answer flows through each unit of a layer, on the straight path from zero to the values.

    Of each step it is the gradient of the answer by the unit, in the middle, times what the unit changes over it.

    Args:
        chosen: the answer that is explained, of numbers in the shape of ``values``.

    Raises:
        RecipeError: the model has no such layer, or it does not answer with one tensor for each sample.
    """
    try:
        module = model.get_submodule(name)
    except AttributeError:
        known = [each for each, found in model.named_modules() if isinstance(found, _KINDS)]
        more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
        raise RecipeError(
            f"The model has no layer {name!r}; among its layers are {', '.join(known[:MOST_NAMED])}{more}."
        ) from None
    outputs: list[object] = []
    hook = module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))

    def run(share: float, *, gradient: bool) -> Tensor:
        outputs.clear()
        with torch.enable_grad():
            answers = chosen((values * share).detach().requires_grad_())
        # A layer that is used more than once is looked at where it runs last.
        found = outputs[-1] if outputs else None
        if not isinstance(found, Tensor) or found.shape[:1] != values.shape[:1] or not found.requires_grad:
            raise RecipeError(
                f"The layer {name} does not answer with one tensor for each sample, so nothing flows through it that "
                "can be told; name another one with --layer."
            )
        return torch.autograd.grad(answers.sum(), found)[0].detach() if gradient else found.detach()

    try:
        before = run(0.0, gradient=False)
        total = torch.zeros_like(before)
        for step in range(steps):
            after = run((step + 1) / steps, gradient=False)
            total += run((step + 0.5) / steps, gradient=True) * (after - before)
            before = after
    finally:
        hook.remove()
    return total
