"""Opens the devices of the setting ``BERTH_DEVICES``."""

import os
import re

from orchestrator.devices.beside import WithCpuSlots
from orchestrator.devices.host import host_memory_bytes
from orchestrator.devices.nvml import NvmlDevices
from orchestrator.devices.slots import SlotDevices
from orchestrator.devices.types import Devices, DriverUnavailable
from orchestrator.exceptions import Malformed

_CPU = re.compile(r"cpu:(\d{1,4})")
_SIM = re.compile(r"sim:(\d{1,4})x(\d{1,5})GiB")
_GIB = 2**30


def open_devices(spec: str, cpu_slots: int | None = 0) -> Devices:
    """Open the devices of ``auto``, ``nvml``, ``cpu:4`` or ``sim:8x80GiB``, with CPU slots beside GPUs.

    ``auto`` uses the GPUs if their driver reports at least one, else CPU slots; ``problem`` then says why.  There are
    at least two slots, so that a job with two ranks fits.  ``nvml`` never fails here: a driver that does not answer
    yet may answer later.

    Args:
        cpu_slots: beside GPUs; None: a quarter of the cores, at least two, beside real ones.

    Raises:
        Malformed: the spec has another form.
    """
    devices = _open(spec)
    count = cpu_slots
    if count is None:
        count = max(2, (os.cpu_count() or 1) // 4) if devices.kind == "gpu" else 0
    if count == 0 or devices.kind == "cpu":
        return devices
    return WithCpuSlots(devices, SlotDevices("cpu", count, host_memory_bytes() // count))


def _open(spec: str) -> Devices:
    if spec == "auto":
        return _gpus_or_cpu()
    if spec == "nvml":
        return NvmlDevices()
    if (match := _CPU.fullmatch(spec)) and (count := int(match[1])):
        return SlotDevices("cpu", count, host_memory_bytes() // count)
    if (match := _SIM.fullmatch(spec)) and (count := int(match[1])) and (each_gib := int(match[2])):
        return SlotDevices("sim", count, each_gib * _GIB)
    raise Malformed(
        f'BERTH_DEVICES is "{spec}", which names no devices. Use auto, nvml, cpu:4 or sim:8x80GiB '
        "(with your own numbers, from 1 on)."
    )


def _gpus_or_cpu() -> Devices:
    gpus = NvmlDevices()
    try:
        if gpus.inventory():
            return gpus
        problem = "The NVIDIA driver found no GPU on this host."
    except DriverUnavailable as error:
        problem = str(error)
    gpus.close()
    count = max(2, os.cpu_count() or 1)
    return SlotDevices("cpu", count, host_memory_bytes() // count, problem)
