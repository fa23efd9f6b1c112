"""Reads NVIDIA GPUs, tolerating drivers that hang, fail or report nonsense.

Calls run in lanes, one for the driver and one for each GPU: if a GPU hangs, the others stay readable, and it is asked
again once its call has returned.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pynvml

from orchestrator.devices.host import ProcessTable, owning_mark
from orchestrator.devices.lanes import Lane, Pending
from orchestrator.devices.nvml_calls import (
    Gpu,
    Sample,
    Stock,
    driver_sentence,
    forget_errors,
    gone_by,
    gpu_sentence,
    take_errors,
    take_sample,
    take_stock,
    watch_errors,
)
from orchestrator.devices.types import DeviceInfo, DeviceProcess, DriverUnavailable, Holder, Kind, Reading

Result = TypeVar("Result")

_READ_LIMIT_S = 2.0
_START_LIMIT_S = 20.0  # without the persistence daemon the driver first wakes each GPU


class NvmlDevices:
    """The NVIDIA GPUs of this host.  One thread may read; any thread may look at ``problem``."""

    kind: Kind = "gpu"

    def __init__(self, limit_s: float = _READ_LIMIT_S) -> None:
        self.problem: str | None = None
        self.dropped = 0
        self._limit_s = limit_s
        self._driver = Lane("nvml")
        self._lanes: dict[str, Lane] = {}
        self._stock: Stock | None = None  # None: the driver is not initialised
        self._events: Any = None  # the driver's event set
        self._slices_changed = False  # since stock was taken
        self._gpus: dict[str, Gpu] = {}
        self._last: dict[str, Reading] = {}
        self._table = ProcessTable()

    def inventory(self) -> list[DeviceInfo]:
        self._take_stock()
        return [gpu.info for gpu in self._gpus.values()]

    def read(self, holders: Sequence[Holder]) -> list[Reading]:
        """Read every GPU.  One that answers late or with nonsense shows its last reading, marked stale.

        Leaves out such a GPU if it has no earlier reading.
        """
        stock = self._stock
        if (
            stock is None
            or self._ask(pynvml.nvmlDeviceGetCount, self._limit_s) != stock.count
            or self._slices_changed
        ):
            self._take_stock()
        errors = self._ask(lambda: take_errors(self._events), self._limit_s)
        deadline = time.monotonic() + self._limit_s
        asked = [(gpu, self._start(gpu)) for gpu in self._gpus.values()]
        readings: list[Reading] = []
        processes: dict[str, dict[int, int]] = {}
        for gpu, pending in asked:
            reading, processes[gpu.info.id] = self._finish(gpu, pending, deadline)
            if reading is not None:
                readings.append(reading)
        readings = self._name_processes(readings, processes, holders)
        readings = [self._with_errors(reading, errors) for reading in readings]
        self._last = {reading.device_id: reading for reading in readings}
        self._note([reading.error for reading in readings if reading.error])
        return readings

    def close(self) -> None:
        for lane in (*self._lanes.values(), self._driver):
            if lane is self._driver and self._stock is not None and not lane.stuck:
                lane.start(pynvml.nvmlShutdown)
            lane.close()

    def _take_stock(self) -> None:
        """Ask the driver for its GPUs; keeps GPUs that are lost now, so that people see them."""
        if self._stock is None:
            self._ask(pynvml.nvmlInit, _START_LIMIT_S)
        stock = self._ask(take_stock, _START_LIMIT_S)
        gpus = {gpu.info.id: gpu for gpu in stock.gpus}
        for id_, gpu in self._gpus.items():
            if gpu.gpu_index in stock.lost:
                gpus.setdefault(id_, gpu)
        for id_, gpu in gpus.items():
            if gpu.info.memory_bytes == 0 and id_ in self._gpus:
                earlier_bytes = self._gpus[id_].info.memory_bytes
                gpus[id_] = replace(gpu, info=replace(gpu.info, memory_bytes=earlier_bytes))
        for id_ in self._lanes.keys() - gpus.keys():
            self._lanes.pop(id_).close()
        self._stock, self._slices_changed = stock, False
        if gpus.keys() != self._gpus.keys() or self._events is None:
            old, watched = self._events, list(gpus.values())
            self._events = self._ask(lambda: watch_errors(watched), self._limit_s)
            self._ask(lambda: forget_errors(old), self._limit_s)
        self._gpus = dict(sorted(gpus.items(), key=lambda item: item[1].info.index))
        self._note([])

    def _ask(self, call: Callable[[], Result], limit_s: float) -> Result:
        """Call the driver; after an error of the driver itself, the next read restarts it."""
        try:
            if self._driver.stuck:
                raise TimeoutError
            return self._driver.start(call).wait(limit_s)
        except TimeoutError as error:
            self.problem = (
                f"The NVIDIA driver has not answered for over {limit_s:.0f} s. Its readings are paused; "
                "if this lasts, look at dmesg and reboot the host."
            )
            raise DriverUnavailable(self.problem) from error
        except pynvml.NVMLError as error:
            self._stock = self._events = None
            self.problem = driver_sentence(error)
            raise DriverUnavailable(self.problem) from error

    def _with_errors(self, reading: Reading, errors: Mapping[str, list[int]]) -> Reading:
        """Add errors to a reading.  Slices get all errors of their GPU: the driver does not always name the slice."""
        info = self._gpus[reading.device_id].info
        return replace(reading, xids=tuple(errors.get(info.mig_parent or info.id, ())))

    def _start(self, gpu: Gpu) -> Pending[Sample] | None:
        lane = self._lanes.get(gpu.info.id)
        if lane is None:
            lane = self._lanes[gpu.info.id] = Lane(f"nvml-{gpu.info.index}")
        return None if lane.stuck else lane.start(lambda: take_sample(gpu))

    def _finish(
        self, gpu: Gpu, pending: Pending[Sample] | None, deadline: float
    ) -> tuple[Reading | None, dict[int, int]]:
        """The reading of a GPU (without processes), and its memory by process."""
        index, id_ = gpu.gpu_index, gpu.info.id
        try:
            if pending is None:
                raise TimeoutError
            sample = pending.wait(deadline - time.monotonic())
        except TimeoutError:
            return self._stale(id_, f"GPU {index} does not answer."), {}
        except pynvml.NVMLError as error:
            sentence = gpu_sentence(index, error)
            self._slices_changed |= gpu.parent is not None
            gone = gone_by(error)
            if gone is None:
                return self._stale(id_, sentence), {}
            total = gpu.info.memory_bytes
            lost = Reading(
                device_id=id_,
                taken_at=time.time(),
                used_bytes=0,
                total_bytes=total,
                gone=gone,
                error=sentence,
            )
            return lost, {}
        self._slices_changed |= sample.slices_changed
        self.dropped += sample.dropped + (not sample.plausible)
        if not sample.plausible:
            return self._stale(id_, f"GPU {index} reported values that make no sense; they are ignored."), {}
        return _reading(gpu, sample), sample.memory_by_pid

    def _stale(self, id_: str, sentence: str) -> Reading | None:
        last = self._last.get(id_)
        return None if last is None else replace(last, stale=True, gone=None, error=sentence)

    def _name_processes(
        self, readings: list[Reading], memory: dict[str, dict[int, int]], holders: Sequence[Holder]
    ) -> list[Reading]:
        attempts = {holder.nonce: f"{holder.job_id}:{holder.attempt}" for holder in holders}
        seen = self._table.look({pid for by_pid in memory.values() for pid in by_pid})
        named: dict[int, tuple[str | None, str, str | None, float | None]] = {}
        for pid in {pid for by_pid in memory.values() for pid in by_pid}:
            mark = owning_mark(seen[pid], seen) if pid in seen else None
            attempt = attempts.get(mark.nonce) if mark is not None and mark.nonce is not None else None
            age_s = self._table.age_s(seen[pid]) if pid in seen else None
            named[pid] = (self._table.user(pid), self._table.command(pid), attempt, age_s)
        return [
            reading
            if reading.stale  # keeps the processes of its time
            else replace(
                reading,
                processes=tuple(
                    DeviceProcess(pid, used, *named[pid])
                    for pid, used in sorted(memory[reading.device_id].items())
                ),
            )
            for reading in readings
        ]

    def _note(self, sentences: Sequence[str]) -> None:
        """Set ``problem`` to what is wrong with single GPUs."""
        troubles = [*sentences, *(self._stock.problems if self._stock else ())]
        self.problem = " ".join(dict.fromkeys(troubles)) or None


def _reading(gpu: Gpu, sample: Sample) -> Reading:
    return Reading(
        device_id=gpu.info.id,
        taken_at=time.time(),
        used_bytes=sample.used_bytes,
        total_bytes=sample.total_bytes,
        utilization_percent=sample.utilization_percent,
        temperature_c=sample.temperature_c,
        power_w=sample.power_w,
        energy_j=sample.energy_j,
        slowed=sample.slowed,
    )
