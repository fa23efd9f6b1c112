"""An agreement before each exchange within a pass: all ranks take part, or none does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

Agree = Callable[[Sequence[int]], list[int]]
"""Returns the least of each number over all ranks; every rank must call it equally often."""

NO_RANK = 1 << 31
_COLLECTIVES = ("c10d", "_c10d_functional")


class OthersStopped(Exception):
    """Another rank ended its passes before this exchange; ``answer`` is the ranks' agreement."""

    def __init__(self, answer: list[int]) -> None:
        super().__init__("Another rank ended its passes.")
        self.answer = answer


class OutOfMemoryNoticed(torch.OutOfMemoryError):
    """A pass ran out of memory but continued with zeros to its end, so that no rank waits for another."""


class Gate:
    """Asks all ranks before an exchange; a rank that failed answers from the end of its pass, and all leave it.

    All ranks must have the same exchanges in the same order.
    """

    def __init__(self, agree: Agree) -> None:
        self._agree = agree
        self._watched = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, ``ask`` asks the other ranks; outside, it does nothing."""
        self._watched = True
        try:
            yield
        finally:
            self._watched = False

    def ask(self) -> None:
        """Raise OthersStopped if a rank will not take part in the exchange."""
        if not self._watched:
            return
        answer = self._agree([1, NO_RANK])
        if answer[0] != 1:
            raise OthersStopped(answer)


class AskBeforeAll(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Asks at ``gate`` before every collective, for strategies whose exchanges are inside torch operations."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._gate = gate

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its collectives are dispatched again, one by one
        if func.namespace in _COLLECTIVES and "wait" not in func.name():
            self._gate.ask()
        return func(*args, **(kwargs or {}))
