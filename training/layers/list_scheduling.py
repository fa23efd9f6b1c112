"""Three list schedulers that place layers one by one within memory, after Baechi (Jeon et al., SoCC 2020).

Each returns None if the layers do not fit into memory this way.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from training.layers.favourites import favourite_children
from training.layers.placement_problem import Problem, Schedule


def topo(problem: Problem) -> Schedule | None:
    """m-TOPO: fill devices one after the other, in topological order, each up to an even share."""
    devices = len(problem.capacity)
    share = sum(problem.bytes) / devices + max(problem.bytes)
    device_of, device, used = list[int](), 0, 0.0
    for size in problem.bytes:
        while used + size > min(share, problem.capacity[device]):
            device, used = device + 1, 0.0
            if device == devices:
                return None
        device_of.append(device)
        used += size
    return device_of, list(range(len(device_of)))


def etf(problem: Problem) -> Schedule | None:
    """m-ETF: place the layer that can start earliest, on the device where it can."""
    return _ListScheduler(problem, [-1] * len(problem.bytes)).run()


def sct(problem: Problem) -> Schedule | None:
    """m-SCT: like m-ETF, but a device waits for the favourite child of its last layer (Hanen and Munier, 1995)."""
    return _ListScheduler(problem, favourite_children(problem)).run()


class _ListScheduler:
    """Earliest task first; a device may be reserved for one layer for a while."""

    def __init__(self, problem: Problem, favourite: Sequence[int]) -> None:
        self.problem, self.favourite = problem, favourite
        count, devices = len(problem.bytes), len(problem.capacity)
        self.device_of = [-1] * count
        self.end_s = [0.0] * count
        self.free_s = [0.0] * devices
        self.room = list(problem.capacity)
        self.reserved_for = [(-1, 0.0)] * devices  # layer, end of the reservation
        # Per device, the layers whose inputs are all placed: in transfer, and arrived.
        self.arriving: list[list[tuple[float, int]]] = [[] for _ in range(devices)]
        self.arrived: list[list[tuple[float, int]]] = [[] for _ in range(devices)]
        self.arrival_s: dict[int, list[float]] = {}

    def run(self) -> Schedule | None:
        waiting = [len(inputs) for inputs in self.problem.inputs]
        order = list[int]()
        for number, inputs in enumerate(self.problem.inputs):
            if not inputs:
                self._offer(number)
        while len(order) < len(waiting):
            start_s, _, device, number = min(map(self._candidate, range(len(self.room))))
            if start_s == inf:
                return None  # no device has room for the remaining layers
            self._put(number, device, start_s)
            order.append(number)
            for each in self.problem.outputs[number]:
                waiting[each] -= 1
                if not waiting[each]:
                    self._offer(each)
        return self.device_of, order

    def _offer(self, number: int) -> None:
        arrivals = []
        for device in range(len(self.room)):
            arrival_s = 0.0
            for each in self.problem.inputs[number]:
                away = self.device_of[each] != device
                arrival_s = max(arrival_s, self.end_s[each] + (self.problem.transfer_s[each] if away else 0))
            arrivals.append(arrival_s)
            heappush(self.arriving[device], (arrival_s, number))
        self.arrival_s[number] = arrivals

    def _candidate(self, device: int) -> tuple[float, float, int, int]:
        """Return (start, negated time to the end, device, layer) of the device's next layer."""
        free_s, arriving, arrived = self.free_s[device], self.arriving[device], self.arrived[device]
        reserved_for, until_s = self.reserved_for[device]
        if reserved_for >= 0 and self._may_run(reserved_for, device) and reserved_for in self.arrival_s:
            start_s = max(free_s, self.arrival_s[reserved_for][device])
            return start_s, -inf, device, reserved_for
        earliest_s = (
            max(free_s, until_s) if reserved_for >= 0 and self.device_of[reserved_for] < 0 else free_s
        )
        while arriving and (arriving[0][0] <= earliest_s or not self._may_run(arriving[0][1], device)):
            number = heappop(arriving)[1]
            heappush(arrived, (-self.problem.tail_s[number], number))
        while arrived and not self._may_run(arrived[0][1], device):
            heappop(arrived)
        if arrived:
            return earliest_s, arrived[0][0], device, arrived[0][1]
        if arriving:
            arrival_s, number = arriving[0]
            return arrival_s, -self.problem.tail_s[number], device, number
        return inf, 0.0, device, -1

    def _may_run(self, number: int, device: int) -> bool:
        return self.device_of[number] < 0 and self.problem.bytes[number] <= self.room[device]

    def _put(self, number: int, device: int, start_s: float) -> None:
        self.device_of[number] = device
        self.room[device] -= self.problem.bytes[number]
        self.end_s[number] = self.free_s[device] = start_s + self.problem.compute_s[number]
        self.reserved_for[device] = (
            self.favourite[number],
            self.end_s[number] + self.problem.transfer_s[number],
        )
