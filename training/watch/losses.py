"""Losses that are not finite: noticed in their step, reported once, and optionally fatal."""

import math
import time
from collections import deque
from typing import Any

import torch
from torch import Tensor

from training import events
from training.report import Reporter
from training.strategies.ranks import Ranks

READ_EVERY_S = 0.5


class BadLoss(RuntimeError):
    """The loss was NaN or infinite, and ``stop_on_nan`` is set; the newest checkpoint is older than that."""


class LossWatch:
    """Checks every loss of this rank without blocking the training.

    On a GPU, losses are read in groups, by an asynchronous copy.
    """

    def __init__(self, reporter: Reporter, device: torch.device, rank: int, *, stops: bool) -> None:
        self.stops = False  # whether a bad loss was seen and ``stop_on_nan`` is set
        self._reporter = reporter
        self._on_host = device.type == "cpu"
        self._rank = rank
        self._may_stop = stops
        self._bad: tuple[int, float] | None = None  # step and loss of the first bad one
        self._waiting: deque[tuple[int, Tensor]] = deque()
        self._copying: tuple[list[int], Tensor, Any] | None = None
        self._read_s = 0.0

    def look(self, step: int, loss: Tensor) -> float | Tensor:
        """Check a loss; return what to report: the number, if reading it does not block."""
        if self._on_host:
            value = loss.item()
            if not math.isfinite(value):
                self._note(step, value)
            return value
        self._waiting.append((step, loss))
        now_s = time.monotonic()
        if now_s - self._read_s >= READ_EVERY_S:
            self._read_s = now_s
            self._receive()
            self._send()
        return loss

    def finish(self) -> None:
        """Check the remaining losses; waits for their copies."""
        if not self._on_host:
            torch.cuda.current_stream().synchronize()
            self._receive()
            self._send()
            torch.cuda.current_stream().synchronize()
            self._receive()

    def end(self, ranks: Ranks) -> None:
        """Raise BadLoss with the steps and ranks of the bad losses; all ranks must call this."""
        bad_losses = [(rank, *bad) for rank, bad in enumerate(ranks.gather(self._bad)) if bad]
        step = min(step for _, step, _ in bad_losses)
        who = ", ".join(f"rank {rank} ({loss} at step {step})" for rank, step, loss in bad_losses)
        raise BadLoss(
            f"The loss is not finite since step {step}: {who} of {ranks.size}. Lower learning_rate, set "
            "max_grad_norm, check the samples of that step, or continue anyway with stop_on_nan=False."
        )

    def _note(self, step: int, loss: float) -> None:
        if self._bad is not None:
            return
        self._bad = (step, loss)
        self.stops = self._may_stop
        self._reporter.event(
            events.BAD_LOSS_EVENT, step=step, rank=self._rank, loss=str(loss), stops=self._may_stop
        )

    def _send(self) -> None:
        if not self._waiting or self._copying is not None:
            return
        steps = [step for step, _ in self._waiting]
        losses = torch.stack([loss.float() for _, loss in self._waiting])
        self._waiting.clear()
        on_host = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True)
        on_host.copy_(losses, non_blocking=True)
        arrived = torch.cuda.current_stream().record_event()
        self._copying = (steps, on_host, arrived)

    def _receive(self) -> None:
        if self._copying is None or not self._copying[2].query():
            return
        steps, losses, _ = self._copying
        self._copying = None
        for step, loss in zip(steps, losses.tolist(), strict=True):
            if not math.isfinite(loss):
                self._note(step, loss)
                return
