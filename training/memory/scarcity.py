"""Detects scarce memory, in which ranks must agree before they exchange gradients."""

import os
import time

import torch

from training.memory.meters import PRETEND_VARIABLE

LOOK_EVERY_S = 1.0
_NEAR = 0.9  # of the most this process could hold


class Scarcity:
    """Decides whether ranks must be careful: run all passes of a step first, then exchange.

    A rank that runs out of memory during an exchange would leave the others waiting.  Being careful costs
    the overlap of passes and exchange, so ranks only do it while memory is scarce on one of them.  Host
    memory is not checked: running out of it kills the process instead of raising an error.
    """

    def __init__(self, device: torch.device, *, ranks: int, repeats: bool, deterministic: bool) -> None:
        """Without the strategy's ``repeats``, ranks are never careful."""
        pretended = PRETEND_VARIABLE in os.environ
        self._watched = repeats and device.type == "cuda" and ranks > 1
        self._device = device
        # Careful until the need of a step is known, unless deterministic: a late exchange rounds differently.
        self.careful = repeats and (pretended or (self._watched and not deterministic))
        self._stays = pretended or not repeats
        self._near = False
        self._looked_s = 0.0

    def look(self) -> bool:
        """Return whether this rank is near its limit; reads the counters once per second."""
        now_s = time.monotonic()
        if self._watched and now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            free_bytes, _ = torch.cuda.mem_get_info(self._device)
            whole_bytes = free_bytes + torch.cuda.memory_reserved(self._device)
            self._near = torch.cuda.max_memory_allocated(self._device) > _NEAR * whole_bytes
        return self._near

    def take(self, careful: bool) -> None:
        """Take the ranks' agreement."""
        if not self._stays:
            self.careful = careful
