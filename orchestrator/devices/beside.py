"""GPUs with CPU slots beside them, for jobs that need no GPU."""

from collections.abc import Sequence

from orchestrator.devices.slots import SlotDevices
from orchestrator.devices.types import DeviceInfo, Devices, Holder, Kind, Reading


class WithCpuSlots:
    """The devices of a server with GPUs: they say what is wrong, and the slots are always there."""

    def __init__(self, gpus: Devices, slots: SlotDevices) -> None:
        self.kind: Kind = gpus.kind
        self._gpus = gpus
        self._slots = slots
        self._slot_ids = frozenset(info.id for info in slots.inventory())

    @property
    def problem(self) -> str | None:
        return self._gpus.problem

    @property
    def dropped(self) -> int:
        return self._gpus.dropped

    def inventory(self) -> list[DeviceInfo]:
        """The GPUs, then the slots.

        Raises:
            DriverUnavailable: the driver does not answer.
        """
        return [*self._gpus.inventory(), *self._slots.inventory()]

    def read(self, holders: Sequence[Holder]) -> list[Reading]:
        """One reading of each GPU and slot; processes are searched only while a slot is held.

        Raises:
            DriverUnavailable: the driver does not answer.
        """
        on_slots = [holder for holder in holders if holder.device_id in self._slot_ids]
        on_gpus = [holder for holder in holders if holder.device_id not in self._slot_ids]
        return [*self._gpus.read(on_gpus), *self._slots.read(on_slots)]

    def close(self) -> None:
        self._gpus.close()
        self._slots.close()
