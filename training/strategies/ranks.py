"""Communication between ranks through host memory, besides the gradients."""

import atexit
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import PrefixStore  # not exported by torch.distributed
from torch.distributed.rendezvous import rendezvous

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

EXCHANGE_EVERY_S = 0.05  # an exchange takes 35 us of CPU, noticeable for short steps


@dataclass(frozen=True, slots=True)
class Requests:
    """What any rank requests of all; ``busy_s`` is the computing time per step of each rank, if newly known."""

    save: bool = False
    stop: bool = False
    bad_loss: bool = False
    careful: bool = False
    unused: bool = False
    busy_s: list[float] = field(default_factory=list)


NO_REQUESTS = Requests()


class Ranks(Protocol):
    """All processes of a training."""

    rank: int
    size: int

    def agree(
        self, *, save: bool, stop: bool, bad_loss: bool, careful: bool, unused: bool, busy_s: float
    ) -> Requests:
        """Return the recent requests of all ranks; all ranks get the same answer at the same step.

        The answer is one exchange late, so that no rank waits for another.  An exchange takes place every
        step, or every 50 ms if steps are shorter.  Requests persist until they are answered.
        """

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Return the least of each number over all ranks; waits for them."""

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each rank; waits for all ranks."""

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the sum over all ranks, in host memory; waits for them."""

    def close(self) -> None:
        """End the groups that the constructor started."""


class Alone:
    """A single process, which needs no communication."""

    rank = 0
    size = 1

    def agree(
        self, *, save: bool, stop: bool, bad_loss: bool, careful: bool, unused: bool, busy_s: float
    ) -> Requests:
        if not (save or stop or bad_loss):
            return NO_REQUESTS
        return Requests(save, stop, bad_loss, careful, unused)

    def least(self, numbers: Sequence[int]) -> list[int]:
        return [*numbers]

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def sum(self, numbers: Tensor) -> Tensor:
        return numbers.cpu()

    def close(self) -> None:
        """Do nothing: there is no group."""


_ended: list[Callable[[], None]] = []


def close_at_next_training(close: Callable[[], None]) -> None:
    """Keep the groups of a training that ended: its state may still be gathered.

    ``close`` is called when the next training starts, or at the end of the process.
    """
    if not _ended:
        atexit.register(close_ended_trainings)
    _ended.append(close)


def close_ended_trainings() -> None:
    """End the groups of earlier trainings. All ranks must call this."""
    atexit.unregister(close_ended_trainings)
    while _ended:
        _ended.pop()()


_Rendezvous = tuple["Store", int, int]
_rendezvous_of: dict[tuple[str | None, ...], _Rendezvous] = {}
_groups_made = 0


def join_ranks(backend: str, timeout: timedelta) -> None:
    """Make the group of all ranks over torchrun's store; allowed again after the last group has ended.

    Each group has its own prefix: the store still contains the addresses of earlier groups.
    """
    global _groups_made
    place = tuple(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
    if place not in _rendezvous_of:  # reused, because rank 0 may serve the store
        _rendezvous_of[place] = next(iter(rendezvous("env://", timeout=timeout)))
    store, rank, size = _rendezvous_of[place]
    _groups_made += 1
    own = PrefixStore(f"berth/group/{_groups_made}", store)
    distributed.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)


class Connected:
    """The ranks that torchrun started; starts the process group, unless the script did, and ends it.

    Agreements use gloo on the host, so that they never wait for the GPU.
    """

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        timeout = timedelta(seconds=timeout_s)
        self._owns_group = not distributed.is_initialized()
        if self._owns_group:
            join_ranks("nccl" if device.type == "cuda" else "gloo", timeout)
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        self._side = distributed.new_group(backend="gloo", timeout=timeout)
        self._pending: tuple[distributed.Work, Tensor] | None = None
        self._every = 1  # calls of ``agree`` per exchange
        self._calls = 0
        self._requests = [0, 0, 0, 0, 0]
        self._busy_s = 0.0
        self._exchanged_s = time.perf_counter()

    def agree(
        self, *, save: bool, stop: bool, bad_loss: bool, careful: bool, unused: bool, busy_s: float
    ) -> Requests:
        self._calls += 1
        self._busy_s += busy_s
        if save or stop or bad_loss or careful or unused:
            requests = (save, stop, bad_loss, careful, unused)
            self._requests = [max(pair) for pair in zip(self._requests, requests, strict=True)]
        if self._calls < self._every:
            return NO_REQUESTS
        return self._exchange()

    def least(self, numbers: Sequence[int]) -> list[int]:
        message = torch.tensor(numbers, dtype=torch.int64)
        distributed.all_reduce(message, distributed.ReduceOp.MIN, group=self._side)
        return [int(number) for number in message]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._side)
        return values

    def sum(self, numbers: Tensor) -> Tensor:
        on_host = numbers.cpu()
        distributed.all_reduce(on_host, group=self._side)
        return on_host

    def close(self) -> None:
        self._finish()
        if self._owns_group:
            distributed.destroy_process_group()
        else:
            distributed.destroy_process_group(self._side)  # its threads would remain with the script's group

    def _exchange(self) -> Requests:
        agreed = self._finish()
        now_s = time.perf_counter()
        step_us = int((now_s - self._exchanged_s) / self._calls * 1e6)
        busy_us = [0] * self.size
        busy_us[self.rank] = int(self._busy_s / self._calls * 1e6)
        message = torch.tensor([*self._requests, step_us, *busy_us])
        work = distributed.all_reduce(message, distributed.ReduceOp.MAX, group=self._side, async_op=True)
        self._pending = (cast(distributed.Work, work), message)
        self._calls, self._busy_s, self._requests, self._exchanged_s = 0, 0.0, [0, 0, 0, 0, 0], now_s
        return agreed

    def _finish(self) -> Requests:
        if self._pending is None:
            return NO_REQUESTS
        work, message = self._pending
        work.wait()
        self._pending = None
        save, stop, bad_loss, careful, unused, step_us, *busy_us = message.tolist()
        self._every = max(1, int(EXCHANGE_EVERY_S * 1e6 / max(step_us, 1)))  # the same on all ranks
        busy_s = [each / 1e6 for each in busy_us]
        return Requests(bool(save), bool(stop), bool(bad_loss), bool(careful), bool(unused), busy_s)
