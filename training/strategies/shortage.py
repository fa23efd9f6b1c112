"""A pipeline's rank without memory goes through the rest of a step without computing, so that no other waits for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from training.memory.autotune import clear_memory, is_host_memory, is_out_of_memory
from training.memory.gate import OutOfMemoryNoticed


class Shortage:
    """Whether a pass of the step ran out of memory; what the ranks sent each other since is worth nothing."""

    def __init__(self) -> None:
        self.noticed = False
        self._text = ""

    def note(self, error: Exception) -> None:
        """Raises it where it is of another kind; memory of the failed pass is free after ``give_back``."""
        if not is_out_of_memory(error) or is_host_memory(error):
            raise error
        self.noticed, self._text = True, str(error)

    def give_back(self) -> None:
        """Call it when the error is gone, which keeps the failed pass's tensors alive."""
        clear_memory()

    def end(self) -> None:
        """Raises OutOfMemoryNoticed where memory ran out since the last call."""
        if self.noticed:
            self.noticed = False
            raise OutOfMemoryNoticed(self._text)


class SparingStage(PipelineStage):
    """Passes zeros backwards once memory ran out; without ``shortage`` as torch's own."""

    def __init__(self, shortage: Shortage | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shortage = shortage

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        if self._shortage is None:
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        if not self._shortage.noticed:
            try:
                return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
            except Exception as error:  # noqa: BLE001 -- ``note`` raises what is no lack of memory
                self._shortage.note(error)
        inputs: Sequence[Any] = bwd_kwargs["input_values"]
        bwd_kwargs.clear()  # the graph of this part
        self._shortage.give_back()
        return tuple(
            torch.zeros_like(each) if isinstance(each, Tensor) and each.requires_grad else None
            for each in inputs
        ), None
