"""GPUs that somebody has left: a pass may give them away from the first reading on that shows it (F27)."""

from collections.abc import Iterable

from orchestrator.devices.types import Reading
from orchestrator.live import wakeups
from orchestrator.models import Lease


class FreedDevices:
    """Asks for a pass when a lease has ended or a process of nobody's is gone, and the device is empty of such."""

    def __init__(self) -> None:
        self._held: set[tuple[str, int]] = set()  # device, attempt
        self._used: set[str] = set()  # devices with processes of no attempt that holds them

    def note(self, readings: Iterable[Reading], leases: Iterable[Lease]) -> None:
        """``leases`` are those that the readings were taken with."""
        held = {(lease.device_id, lease.attempt_id) for lease in leases if lease.device.kind == "gpu"}
        used = {
            each.device_id for each in readings if any(process.attempt is None for process in each.processes)
        }
        left = self._used | {device for device, _ in self._held - held}
        self._held, self._used = held, used
        if left - used:
            wakeups.schedule()
