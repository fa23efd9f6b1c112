"""The devices of this host and their readings."""

from orchestrator.devices.host import read_host
from orchestrator.devices.opening import open_devices
from orchestrator.devices.types import (
    DeviceInfo,
    DeviceProcess,
    Devices,
    DriverUnavailable,
    Holder,
    HostReading,
    Reading,
)

__all__ = [
    "DeviceInfo",
    "DeviceProcess",
    "Devices",
    "DriverUnavailable",
    "Holder",
    "HostReading",
    "Reading",
    "open_devices",
    "read_host",
]
