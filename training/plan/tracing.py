"""Traces the memory of a training step without running it.

The step runs once on fake tensors, which have shapes but no data, and every storage is counted from its
creation to its release.  The batch size is a prime that no dimension of the model has, so the size of a
storage shows whether it grows with the batch: one pass gives the peak for every batch size.
"""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from training.config.plan import CheckpointingName, PrecisionName
from training.memory.activation_checkpointing import checkpoint_activations, restore_activations
from training.model.batches import Objective
from training.model.blocks import find_blocks
from training.model.objective import LossFn
from training.plan.memory import Footprint, OptimizerCost, Work

_PRIMES = (251, 241, 239, 233, 229, 227, 223, 211, 199, 197, 193, 191, 181, 179, 173, 167)
_MOVED_FOR_EACH_BYTE = 3  # of a result: two operands are read
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class CannotEstimate(Exception):
    """The model cannot be traced on fake tensors; the message says why."""


class _CountingMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Fake tensors that record the live bytes after each operation."""

    def __init__(self, prime: int) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.prime = prime
        self.depth = 0
        self.alive = [0.0, 0.0, 0.0]  # fixed, per sample, gradients
        self.timeline: list[tuple[float, float, float]] = []
        self.counted: dict[int, tuple[object, int, float]] = {}
        self.born = [0.0, 0.0]
        self.flops = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.depth += 1
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs or {})
        finally:
            self.depth -= 1
        if self.depth:
            return out  # inside a fake kernel in Python; the real kernel does not have these operations
        if count := flop_registry.get(getattr(func, "overloadpacket", None)):
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        if isinstance(out, Tensor):
            self._count(out)
        elif isinstance(out, tuple | list):
            for each in out:
                if isinstance(each, Tensor):
                    self._count(each)
        else:
            return out  # a query, such as of the device
        self.timeline.append((self.alive[0], self.alive[1], self.alive[2]))
        return out

    def begin(self, tensors: Iterable[Tensor]) -> None:
        """Start counting; ``tensors`` exist before and after the step."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.counted[storage._cdata] = (storage, 0, 0.0)
        self.alive = [0.0, 0.0, 0.0]
        self.born = [0.0, 0.0]
        self.timeline.clear()

    def count_as_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        key = parameter.grad.untyped_storage()._cdata
        storage, kind, size = self.counted.get(key, (None, 2, 0.0))
        if kind != 2:
            self.alive[kind] -= size
            size = size * self.prime if kind == 1 else size
            self.alive[2] += size
            self.counted[key] = (storage, 2, size)

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.counted:
            return
        size = storage.nbytes()
        kind = 1 if size and size % self.prime == 0 else 0
        size_bytes = size / self.prime if kind else float(size)
        self.alive[kind] += size_bytes
        self.born[kind] += size_bytes
        self.counted[key] = (weakref.ref(storage, partial(self._forget, key)), kind, size_bytes)

    def _forget(self, key: int, _: object) -> None:
        _, kind, size = self.counted.pop(key)
        self.alive[kind] -= size


class _Step(nn.Module):
    """Forward and backward in one call, since recomputation needs the fake parameters in the model too."""

    def __init__(self, model: nn.Module, objective: Objective, precision: PrecisionName) -> None:
        super().__init__()
        self.model, self.objective, self.precision = model, objective, precision

    def forward(self, batch: Any) -> None:
        with _autocast(self.precision):
            loss = self.objective.loss(self.model, batch)
        torch.autograd.backward(loss)


def trace_step(
    model: nn.Module,
    sample: Any,
    loss_fn: LossFn | Objective | None,
    *,
    precision: PrecisionName = "fp32",
    checkpointing: CheckpointingName = "none",
) -> Footprint:
    """Trace forward and backward of one micro-batch; changes neither model nor generators.

    ``sample`` is one of the dataset, without the batch dimension.

    Raises:
        CannotEstimate: the model reads values, or uses operations that fake tensors do not support.
    """
    prime = _choose_prime(model, sample)
    mode = _CountingMode(prime)
    blocks = find_blocks(model)
    kept: list[tuple[float, float]] = [(0.0, 0.0)] * len(blocks)
    parameters = {name: _fake(mode, each) for name, each in model.named_parameters()}
    buffers = {name: _fake(mode, each) for name, each in model.named_buffers()}
    try:
        with ExitStack() as stack:
            stack.enter_context(_undisturbed(model))
            stack.enter_context(_recomputed(model, checkpointing))
            stack.enter_context(_measured(blocks, mode, kept))
            stack.enter_context(mode)
            batch = make_batch(sample, prime)
            mode.begin([*parameters.values(), *buffers.values(), *_tensors(batch)])
            for each in parameters.values():
                if each.requires_grad:
                    cast(Any, each).register_post_accumulate_grad_hook(mode.count_as_gradient)
            state = {f"model.{name}": each for name, each in (parameters | buffers).items()}
            step = _Step(model, Objective.of(loss_fn), precision)
            torch.func.functional_call(step, state, (batch,))
    except Exception as error:
        raise CannotEstimate(
            f"The model could not be traced without data: {type(error).__name__}: {_first_line(error)}"
        ) from error
    unused = tuple(name for name, each in parameters.items() if each.requires_grad and each.grad is None)
    return _summarise(model, blocks, kept, mode, sample, unused)


def _summarise(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    kept: Sequence[tuple[float, float]],
    mode: _CountingMode,
    sample: Any,
    unused: tuple[str, ...],
) -> Footprint:
    sizes = [each.nbytes for each in model.parameters()]
    return Footprint(
        parameter_bytes=sum(sizes),
        trainable_bytes=sum(each.nbytes for each in model.parameters() if each.requires_grad),
        buffer_bytes=sum(each.nbytes for each in model.buffers()),
        largest_parameter_bytes=max(sizes, default=0),
        sample_bytes=float(sum(each.nbytes for each in _numbers(sample))),
        block_parameter_bytes=tuple(sum(each.nbytes for each in block.parameters()) for block in blocks),
        block_kept=tuple(kept),
        timeline=np.array(mode.timeline or [(0.0, 0.0, 0.0)]).T,
        work=Work(
            flops=mode.flops / mode.prime,
            moved_fixed_bytes=_MOVED_FOR_EACH_BYTE * mode.born[0],
            moved_bytes=_MOVED_FOR_EACH_BYTE * mode.born[1],
            operations=len(mode.timeline),
        ),
        unused=unused,
    )


def measure_optimizer(make: Callable[[nn.Module], torch.optim.Optimizer], *, on_gpu: bool) -> OptimizerCost:
    """Measure an optimizer's memory on a small parameter; assume two copies if that fails."""
    scratch = (1.0, 0.0) if on_gpu else (0.0, 2.0)
    tiny = nn.Linear(8, 8, bias=False)
    try:
        optimizer = make(tiny)
        tiny.weight.grad = torch.zeros_like(tiny.weight)
        optimizer.step()
    except Exception:  # noqa: BLE001 -- the user's function may need its own model
        return OptimizerCost(2.0, *scratch)
    kept = sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim()
    )
    return OptimizerCost(kept / tiny.weight.nbytes, *scratch)


def _choose_prime(model: nn.Module, sample: Any) -> int:
    tensors = [
        *model.parameters(),
        *model.buffers(),
        *_numbers(sample),
    ]
    sizes = {size for each in tensors for size in each.shape}
    return next((prime for prime in _PRIMES if all(size % prime for size in sizes)), _PRIMES[0])


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    return mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)


def make_batch(sample: Any, size: int) -> Any:
    """Add a batch dimension to the sample's shapes; numbers become a vector, as in a loader."""

    def widen(value: Any) -> Any:
        if isinstance(value, str | bytes) or value is None:
            return [value] * size
        as_tensor = torch.as_tensor(value)
        return torch.zeros((size, *as_tensor.shape), dtype=as_tensor.dtype)

    return tree_map(widen, sample)


def _numbers(sample: Any) -> list[Tensor]:
    """Return the parts of a sample that become tensors; texts stay in lists."""
    return [
        torch.as_tensor(each)
        for each in tree_leaves(sample)
        if each is not None and not isinstance(each, str | bytes)
    ]


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def _autocast(precision: PrecisionName) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast("cpu", _AUTOCAST[precision])


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Set training mode; afterwards restore mode, generators and garbage collector."""
    was_training, generator, collecting = model.training, torch.get_rng_state(), gc.isenabled()
    model.train()
    gc.disable()  # collecting fake tensors would take a third of the time
    try:
        yield
    finally:
        model.train(was_training)
        torch.set_rng_state(generator)
        if collecting:
            gc.enable()


@contextmanager
def _recomputed(model: nn.Module, checkpointing: CheckpointingName) -> Iterator[None]:
    blocks = checkpoint_activations(model, checkpointing)
    try:
        yield
    finally:
        restore_activations(blocks)


@contextmanager
def _measured(
    blocks: Sequence[nn.Module], mode: _CountingMode, kept: list[tuple[float, float]]
) -> Iterator[None]:
    """Record the bytes that each block's forward keeps."""
    before: dict[int, tuple[float, float]] = {}

    def enter(number: int, *_: Any) -> None:
        before[number] = (mode.alive[0], mode.alive[1])

    def leave(number: int, *_: Any) -> None:
        fixed, by_sample = before[number]
        kept[number] = (max(mode.alive[0] - fixed, 0), max(mode.alive[1] - by_sample, 0))

    handles = []
    for number, block in enumerate(blocks):
        handles.append(block.register_forward_pre_hook(partial(enter, number)))
        handles.append(block.register_forward_hook(partial(leave, number)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no reason given"
