"""Devices that heat or a fault slows down: the jobs on them are told, because all their ranks wait for the slowest."""

from collections.abc import Iterable, Sequence

from orchestrator.devices.types import Reading
from orchestrator.jobs import lifecycle
from orchestrator.models import Lease

SETTLED_S = 30.0  # clocks dip for moments, and nobody needs to know


class SlowDevices:
    """Call ``note`` with every round of readings; nothing is stopped for being slow (F85)."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}  # by device
        self._told: set[int] = set()  # leases

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease], now_s: float) -> None:
        """Take in one round; ``now_s`` is of a clock that only goes forward."""
        slowed = {each.device_id: each.slowed for each in readings if each.slowed and not each.stale}
        self._since_s = {id_: self._since_s.get(id_, now_s) for id_ in slowed}
        self._told &= {lease.pk for lease in leases}
        for lease in leases:
            since_s = self._since_s.get(lease.device_id)
            if since_s is None or now_s - since_s < SETTLED_S or lease.pk in self._told:
                continue
            self._told.add(lease.pk)
            text = f"{lease.device.label} is slowed down by {slowed[lease.device_id]}"
            others = "; all ranks wait for the slowest" if lease.attempt.job.gpus > 1 else ""
            lifecycle.remark(lease.attempt.job, f"{text}{others}.", actor="health")
