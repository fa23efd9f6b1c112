"""Where ranks exchange in the midst of a pass, they make sure before each exchange that all will come to it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

Agree = Callable[[Sequence[int]], list[int]]
"""The least of each number over all ranks, on all ranks; every rank must call it equally often."""

NO_RANK = 1 << 31
_COLLECTIVES = ("c10d", "_c10d_functional")


class OthersStopped(Exception):
    """Another rank ended its passes before this exchange; ``answer`` is what the ranks agreed on."""

    def __init__(self, answer: list[int]) -> None:
        super().__init__("Another rank ended its passes.")
        self.answer = answer


class OutOfMemoryNoticed(torch.OutOfMemoryError):
    """Memory ran out in a pass that went on to its end all the same, so no rank waits for another."""


class Gate:
    """A rank that fails in a pass answers at its end what the others ask here, so all leave the same pass.

    All ranks must have the same exchanges in the same order.
    """

    def __init__(self, agree: Agree) -> None:
        self._agree = agree
        self._watched = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, ``ask`` asks; outside it costs nothing."""
        self._watched = True
        try:
            yield
        finally:
            self._watched = False

    def ask(self) -> None:
        """Raises OthersStopped where a rank will not come."""
        if not self._watched:
            return
        answer = self._agree([1, NO_RANK])
        if answer[0] != 1:
            raise OthersStopped(answer)


class AskBeforeAll(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Asks at ``gate`` before every collective, for strategies whose exchanges are in torch's own operations."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._gate = gate

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its collectives come by once more, one by one
        if func.namespace in _COLLECTIVES and "wait" not in func.name():
            self._gate.ask()
        return func(*args, **(kwargs or {}))
