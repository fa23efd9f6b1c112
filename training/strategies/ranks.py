"""What the ranks of a training tell each other on the host, beside the gradients."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import PrefixStore  # torch.distributed has it, without saying so
from torch.distributed.rendezvous import rendezvous

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

EXCHANGE_EVERY_S = 0.05  # an exchange costs 35 us of CPU, which short steps would feel


@dataclass(frozen=True, slots=True)
class Wishes:
    """What any rank wants of all; ``busy_s`` is each rank's own time a step where it is newly known."""

    save: bool = False
    stop: bool = False
    bad_loss: bool = False
    careful: bool = False
    unused: bool = False
    busy_s: list[float] = field(default_factory=list)


NO_WISHES = Wishes()


class Ranks(Protocol):
    """All processes of a training."""

    rank: int
    size: int

    def agree(
        self, *, save: bool, stop: bool, bad_loss: bool, careful: bool, unused: bool, busy_s: float
    ) -> Wishes:
        """What any rank wished a little earlier; all ranks get the same answer at the same step.

        Late, so that no rank waits for another: by one exchange, which takes place every step or,
        where steps are short, every 50 ms.  Wishes last until they are answered.
        """

    def least(self, numbers: Sequence[int]) -> list[int]:
        """The least of each number over ranks, on all ranks; waits for them."""

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, on all ranks; waits for them."""

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over ranks, on all ranks and on the host; waits for them."""

    def close(self) -> None:
        """End what the constructor started."""


class Alone:
    """One process: it agrees with itself at once."""

    rank = 0
    size = 1

    def agree(
        self, *, save: bool, stop: bool, bad_loss: bool, careful: bool, unused: bool, busy_s: float
    ) -> Wishes:
        if not (save or stop or bad_loss):
            return NO_WISHES
        return Wishes(save, stop, bad_loss, careful, unused)

    def least(self, numbers: Sequence[int]) -> list[int]:
        return [*numbers]

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def sum(self, numbers: Tensor) -> Tensor:
        return numbers.cpu()

    def close(self) -> None:
        """Nothing to end."""


_Meeting = tuple["Store", int, int]
_met: dict[tuple[str | None, ...], _Meeting] = {}
_groups_made = 0


def join_ranks(backend: str, timeout: timedelta) -> None:
    """Make the group of all ranks, over torchrun's store; a process may do so again when it has ended the last.

    Ranks find each other by addresses in the store, and those of an earlier group would still stand there.
    """
    global _groups_made
    where = tuple(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
    if where not in _met:  # kept: rank 0 may be the one that serves it
        _met[where] = next(iter(rendezvous("env://", timeout=timeout)))
    store, rank, size = _met[where]
    _groups_made += 1
    own = PrefixStore(f"berth/group/{_groups_made}", store)
    distributed.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)


class Connected:
    """The ranks that torchrun started; starts the process group unless the script has, and ends what it started.

    What they agree on travels over gloo on the host: it must not wait for the GPU.
    """

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        timeout = timedelta(seconds=timeout_s)
        self._owns_group = not distributed.is_initialized()
        if self._owns_group:
            join_ranks("nccl" if device.type == "cuda" else "gloo", timeout)
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        self._side = distributed.new_group(backend="gloo", timeout=timeout)
        self._under_way: tuple[distributed.Work, Tensor] | None = None
        self._every = 1  # calls of ``agree`` between two exchanges
        self._calls = 0
        self._wishes = [0, 0, 0, 0, 0]
        self._busy_s = 0.0
        self._exchanged_s = time.perf_counter()

    def agree(
        self, *, save: bool, stop: bool, bad_loss: bool, careful: bool, unused: bool, busy_s: float
    ) -> Wishes:
        self._calls += 1
        self._busy_s += busy_s
        if save or stop or bad_loss or careful or unused:
            wishes = (save, stop, bad_loss, careful, unused)
            self._wishes = [max(pair) for pair in zip(self._wishes, wishes, strict=True)]
        if self._calls < self._every:
            return NO_WISHES
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
            distributed.destroy_process_group(self._side)  # its threads would stay with the script's group

    def _exchange(self) -> Wishes:
        agreed = self._finish()
        now_s = time.perf_counter()
        step_us = int((now_s - self._exchanged_s) / self._calls * 1e6)
        busy_us = [0] * self.size
        busy_us[self.rank] = int(self._busy_s / self._calls * 1e6)
        message = torch.tensor([*self._wishes, step_us, *busy_us])
        work = distributed.all_reduce(message, distributed.ReduceOp.MAX, group=self._side, async_op=True)
        self._under_way = (cast(distributed.Work, work), message)
        self._calls, self._busy_s, self._wishes, self._exchanged_s = 0, 0.0, [0, 0, 0, 0, 0], now_s
        return agreed

    def _finish(self) -> Wishes:
        if self._under_way is None:
            return NO_WISHES
        work, message = self._under_way
        work.wait()
        self._under_way = None
        save, stop, bad_loss, careful, unused, step_us, *busy_us = message.tolist()
        self._every = max(1, int(EXCHANGE_EVERY_S * 1e6 / max(step_us, 1)))  # alike on all ranks
        busy_s = [each / 1e6 for each in busy_us]
        return Wishes(bool(save), bool(stop), bool(bad_loss), bool(careful), bool(unused), busy_s)
