"""Losses that are not finite: noticed in their step, reported once, and optionally fatal."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from training import events
from training.report import Reporter
from training.strategies.ranks import Ranks

READ_EVERY_S = 0.5


class BadLoss(RuntimeError):
    """The loss was NaN or infinite, and ``stop_on_nan`` is set; the newest checkpoint is older than that."""


Bad = tuple[int, float]  # the step and the loss of the first bad one


class Copies(Protocol):
    """Brings losses to the host without blocking the training."""

    def start(self, losses: Tensor) -> tuple[Tensor, Callable[[], bool]]:
        """Start a copy; return it, and a function that says whether it has arrived."""

    def wait(self) -> None:
        """Wait until every copy has arrived."""


class CudaCopies:
    """Copies of the current stream, into pinned memory."""

    def start(self, losses: Tensor) -> tuple[Tensor, Callable[[], bool]]:
        on_host = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True)
        on_host.copy_(losses, non_blocking=True)
        return on_host, torch.cuda.current_stream().record_event().query

    def wait(self) -> None:
        torch.cuda.current_stream().synchronize()


class LossWatch:
    """Checks every loss of this rank without blocking the training.

    On a GPU, losses are read in groups, by an asynchronous copy.  So a bad loss may be known only half a second later:
    ``settle`` reads the rest, and has to be asked before the state is saved.
    """

    def __init__(
        self,
        reporter: Reporter,
        device: torch.device,
        rank: int,
        *,
        stops: bool,
        copies: Copies | None = None,
    ) -> None:
        self.stops = False  # whether a bad loss was seen and ``stop_on_nan`` is set
        self._reporter = reporter
        self._copies = copies or (
            None if device.type == "cpu" else CudaCopies()
        )  # None: losses are on the host
        self._rank = rank
        self._may_stop = stops
        self._bad: Bad | None = None
        self._waiting: deque[tuple[int, Tensor]] = deque()
        self._copying: tuple[list[int], Tensor, Callable[[], bool]] | None = None
        self._read_s = 0.0

    def look(self, step: int, loss: Tensor) -> float | Tensor:
        """Check a loss; return what to report: the number, if reading it does not block."""
        if self._copies is None:
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

    def settle(self) -> Bad | None:
        """Return the bad loss for which the training must end, if there is one; waits for losses not read yet.

        Without ``stop_on_nan`` there is none, and nothing is waited for.
        """
        if self._may_stop:
            self.finish()
        return self._bad if self.stops else None

    def finish(self) -> None:
        """Check the remaining losses; waits for their copies."""
        if self._copies is not None:
            self._copies.wait()
            self._receive()
            self._send()
            self._copies.wait()
            self._receive()

    def end(self, ranks: Ranks) -> None:
        """Raise BadLoss with the steps and ranks of the bad losses; all ranks must call this."""
        raise_if_bad(ranks.gather(self._bad))

    def _note(self, step: int, loss: float) -> None:
        if self._bad is not None:
            return
        self._bad = (step, loss)
        self.stops = self._may_stop
        self._reporter.event(
            events.BAD_LOSS_EVENT, step=step, rank=self._rank, loss=str(loss), stops=self._may_stop
        )

    def _send(self) -> None:
        if self._copies is None or not self._waiting or self._copying is not None:
            return
        steps = [step for step, _ in self._waiting]
        losses = torch.stack([loss.float() for _, loss in self._waiting])
        self._waiting.clear()
        self._copying = (steps, *self._copies.start(losses))

    def _receive(self) -> None:
        if self._copying is None or not self._copying[2]():
            return
        steps, losses, _ = self._copying
        self._copying = None
        for step, loss in zip(steps, losses.tolist(), strict=True):
            if not math.isfinite(loss):
                self._note(step, loss)
                return


def raise_if_bad(of_ranks: Sequence[Bad | None]) -> None:
    """Raise BadLoss with the steps and ranks of the bad losses, if a rank has one."""
    bad_losses = [(rank, *bad) for rank, bad in enumerate(of_ranks) if bad]
    if not bad_losses:
        return
    step = min(step for _, step, _ in bad_losses)
    who = ", ".join(f"rank {rank} ({loss} at step {step})" for rank, step, loss in bad_losses)
    raise BadLoss(
        f"The loss is not finite since step {step}: {who} of {len(of_ranks)}. Lower learning_rate, set "
        "max_grad_norm, check the samples of that step, or continue anyway with stop_on_nan=False."
    )
