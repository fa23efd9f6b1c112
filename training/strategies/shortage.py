"""Out of memory in a pipeline: the rank finishes the step without computing, so that no other rank waits for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from training.memory.autotune import clear_memory, is_host_memory, is_out_of_memory
from training.memory.gate import OutOfMemoryNoticed


class Shortage:
    """Records whether a pass of the step ran out of memory; results sent since then are invalid."""

    def __init__(self) -> None:
        self.noticed = False
        self._text = ""

    def note(self, error: Exception) -> None:
        """Record an out-of-memory error, and raise any other; call ``free`` afterwards."""
        if not is_out_of_memory(error) or is_host_memory(error):
            raise error
        self.noticed, self._text = True, str(error)

    def free(self) -> None:
        """Free the failed pass's memory; call this after the error is released, because it keeps the tensors alive."""
        clear_memory()

    def end(self) -> None:
        """Raise OutOfMemoryNoticed if memory ran out since the last call."""
        if self.noticed:
            self.noticed = False
            raise OutOfMemoryNoticed(self._text)


class SparingStage(PipelineStage):
    """A stage that passes zeros backwards once memory ran out; without ``shortage``, torch's own stage."""

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
            except Exception as error:  # noqa: BLE001 -- ``note`` raises any other error
                self._shortage.note(error)
        inputs: Sequence[Any] = bwd_kwargs["input_values"]
        bwd_kwargs.clear()  # the graph of this part
        self._shortage.free()
        return tuple(
            torch.zeros_like(each) if isinstance(each, Tensor) and each.requires_grad else None
            for each in inputs
        ), None
