"""CPU slots and simulated GPUs: without a driver, read from the real processes of their holders."""

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from orchestrator.devices.host import Mark, Process, ProcessTable, owning_mark
from orchestrator.devices.types import DeviceInfo, DeviceProcess, Holder, Kind, Reading


class SlotDevices:
    """``count`` devices with equal memory, whose jobs run on the CPU."""

    def __init__(self, kind: Kind, count: int, memory_bytes: int, problem: str | None = None) -> None:
        self.kind: Kind = kind
        self.problem = problem
        self.dropped = 0
        self._memory_bytes = memory_bytes
        self._ids = [f"{kind}-{index}" for index in range(count)]
        self._cores_each = max(1.0, (os.cpu_count() or 1) / count)
        self._table = ProcessTable()
        self._cpu_s: dict[tuple[int, int], float] = {}
        self._scanned_at: float | None = None

    def inventory(self) -> list[DeviceInfo]:
        name = "CPU slot" if self.kind == "cpu" else "Simulated GPU"
        return [
            DeviceInfo(id=id_, index=index, kind=self.kind, name=name, memory_bytes=self._memory_bytes)
            for index, id_ in enumerate(self._ids)
        ]

    def read(self, holders: Sequence[Holder]) -> list[Reading]:
        """Read every slot.  Memory is the sum of resident sizes, with shared pages counted for each process.

        Utilization is relative to a slot's share of the cores (at least one); None when a process is first seen.
        """
        taken_at = time.time()
        processes = self._table.scan() if holders else {}
        now = time.monotonic()
        elapsed_s = None if self._scanned_at is None else now - self._scanned_at
        by_device = _sort_to_devices(processes, holders)
        readings = [self._reading(id_, by_device.get(id_, []), taken_at, elapsed_s) for id_ in self._ids]
        mine = [process for members in by_device.values() for process, _ in members]
        self._cpu_s = {(process.pid, process.started_ticks): process.cpu_s for process in mine}
        self._scanned_at = now
        return readings

    def close(self) -> None:
        """Nothing is open."""

    def _reading(
        self, id_: str, members: list[tuple[Process, Holder]], taken_at: float, elapsed_s: float | None
    ) -> Reading:
        return Reading(
            device_id=id_,
            taken_at=taken_at,
            used_bytes=sum(process.resident_bytes for process, _ in members),
            total_bytes=self._memory_bytes,
            utilization_percent=self._utilization([process for process, _ in members], elapsed_s),
            processes=tuple(
                DeviceProcess(
                    process.pid,
                    process.resident_bytes,
                    self._table.user(process.pid),
                    self._table.command(process.pid),
                    f"{holder.job_id}:{holder.attempt}",
                    self._table.age_s(process),
                )
                for process, holder in members
            ),
        )

    def _utilization(self, members: list[Process], elapsed_s: float | None) -> float | None:
        seen_before = [p for p in members if (p.pid, p.started_ticks) in self._cpu_s]
        if not elapsed_s or not seen_before:
            return None
        used_s = sum(p.cpu_s - self._cpu_s[p.pid, p.started_ticks] for p in seen_before)
        return min(100.0, max(0.0, 100 * used_s / elapsed_s / self._cores_each))


def _sort_to_devices(
    processes: Mapping[int, Process], holders: Sequence[Holder]
) -> dict[str, list[tuple[Process, Holder]]]:
    """Assign processes to the device of their rank; those without a rank (torchrun's agent) to the lowest rank's."""
    by_rank = {(holder.nonce, holder.rank): holder for holder in holders}
    lowest: dict[str, Holder] = {}
    for holder in sorted(holders, key=lambda holder: holder.rank, reverse=True):
        lowest[holder.nonce] = holder
    members: dict[str, list[tuple[Process, Holder]]] = defaultdict(list)
    for pid in sorted(processes):
        mark: Mark = owning_mark(processes[pid], processes)
        if mark.nonce is None or mark.nonce not in lowest:
            continue
        rank = -1 if mark.local_rank is None else mark.local_rank
        holder = by_rank.get((mark.nonce, rank), lowest[mark.nonce])
        members[holder.device_id].append((processes[pid], holder))
    return members
