"""Whether memory is so scarce that ranks must make sure of each other before they exchange gradients."""

import os
import time

import torch

from training.memory.meters import PRETEND_VARIABLE

LOOK_EVERY_S = 1.0
_NEAR = 0.9  # of what this process could hold altogether


class Scarcity:
    """A rank that finds no memory in the middle of an exchange would leave the others waiting for it.

    So where memory is scarce on any rank, all run the passes of a step first and exchange when all have
    succeeded.  That costs the overlap of the two, hence not where there is room.  The host's own
    memory ends in a killed process instead of an error, and is not looked at.
    """

    def __init__(self, device: torch.device, *, ranks: int, repeats: bool, deterministic: bool) -> None:
        """``repeats`` is the strategy's; without it nothing is ever careful."""
        pretended = PRETEND_VARIABLE in os.environ
        self._watched = repeats and device.type == "cuda" and ranks > 1
        self._device = device
        # Nobody knows yet what a step needs.  But gradients exchanged at once are rounded otherwise.
        self.careful = repeats and (pretended or (self._watched and not deterministic))
        self._stays = pretended or not repeats
        self._near = False
        self._looked_s = 0.0

    def look(self) -> bool:
        """Whether this rank is near its limit, to be agreed on; looks once a second."""
        now_s = time.monotonic()
        if self._watched and now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            free_bytes, _ = torch.cuda.mem_get_info(self._device)
            whole_bytes = free_bytes + torch.cuda.memory_reserved(self._device)
            self._near = torch.cuda.max_memory_allocated(self._device) > _NEAR * whole_bytes
        return self._near

    def take(self, careful: bool) -> None:
        """What the ranks agreed on."""
        if not self._stays:
            self.careful = careful
