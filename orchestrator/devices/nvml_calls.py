"""Calls to NVIDIA's driver library (NVML), in our units.  Any call may hang or fail."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from orchestrator.devices.types import SLICES_FROM, DeviceInfo, Gone

Value = TypeVar("Value")

NOT_CUT = -1  # instead of a number of slices
_MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
_PROFILE = re.compile(r"MIG (\d\S*)$")
_SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_SLOWED_BY = (  # without the power limit, which is normal for a busy GPU
    (pynvml.nvmlClocksEventReasonHwThermalSlowdown | pynvml.nvmlClocksEventReasonSwThermalSlowdown, "heat"),
    (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "its power supply"),
    (pynvml.nvmlClocksEventReasonHwSlowdown, "its hardware's protection"),
)
_MAX_TEMPERATURE_C = 150
_MOST_ERRORS = 64  # read at once
_MAX_POWER_MW = 5_000_000
_MAX_MEMORY_BYTES = 2**50  # a negative number read as unsigned is far above

_DRIVER_SENTENCES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "No NVIDIA driver found on this host (library not found).",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "The NVIDIA driver of this host is not loaded. Load its kernel module, or reboot."
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "The NVIDIA library and the loaded driver have different versions. "
        "Reboot the host, or reload the driver."
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "This user may not talk to the NVIDIA driver. Check the permissions of /dev/nvidiactl."
    ),
}
_GONE = {
    pynvml.NVML_ERROR_GPU_IS_LOST: Gone.FELL_OFF,
    pynvml.NVML_ERROR_RESET_REQUIRED: Gone.NEEDS_RESET,
    pynvml.NVML_ERROR_NOT_FOUND: Gone.NOT_THERE,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: Gone.NOT_THERE,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Gone.NOT_THERE,
}
_GONE_WORDS = {
    Gone.FELL_OFF: "is lost: it fell off the bus. Reset it, or reboot the host.",
    Gone.NEEDS_RESET: "needs a reset before it can be used again.",
    Gone.NOT_THERE: "is no longer there.",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU or a MIG slice, with the driver's handles (opaque pointers)."""

    info: DeviceInfo
    handle: Any
    parent: Any = None  # of a slice: the GPU's handle
    slices: int = NOT_CUT  # number of slices of the GPU when stock was taken

    @property
    def gpu_index(self) -> int:
        """The index of the GPU, also for its slices."""
        return self.info.index if self.parent is None else self.info.index // SLICES_FROM - 1


@dataclass(frozen=True, slots=True)
class Stock:
    """The GPUs that the driver reports."""

    count: int  # by the driver, including GPUs that cannot be opened
    gpus: list[Gpu] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # indices of GPUs that are gone
    problems: list[str] = field(default_factory=list)  # sentences about skipped GPUs


@dataclass(frozen=True, slots=True)
class Sample:
    """The answers of one GPU; None for readings that it does not have."""

    used_bytes: int
    total_bytes: int
    utilization_percent: float | None
    temperature_c: float | None
    power_w: float | None
    energy_j: float | None
    memory_by_pid: dict[int, int]
    dropped: int  # number of nonsensical values, which are left out
    slowed: str | None = None  # the cause of a slowdown
    slices_changed: bool = False  # since stock was taken

    @property
    def plausible(self) -> bool:
        return 0 <= self.used_bytes <= self.total_bytes and 0 < self.total_bytes < _MAX_MEMORY_BYTES


def driver_sentence(error: pynvml.NVMLError) -> str:
    return _DRIVER_SENTENCES.get(error.value, f"The NVIDIA driver failed ({error}).")


def gone_by(error: pynvml.NVMLError) -> Gone | None:
    """Why a GPU is lost; None if it may recover by itself."""
    return _GONE.get(error.value)


def gpu_sentence(index: int, error: pynvml.NVMLError) -> str:
    gone = gone_by(error)
    return f"GPU {index} {_GONE_WORDS[gone] if gone else f'could not be read ({error}).'}"


def take_stock() -> Stock:
    """Every GPU that can be opened, or its MIG slices instead if it has any."""
    driver = _text(pynvml.nvmlSystemGetDriverVersion())
    stock = Stock(pynvml.nvmlDeviceGetCount())
    for index in range(stock.count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu = Gpu(_describe(handle, index, driver), handle)
        except pynvml.NVMLError as error:
            stock.problems.append(gpu_sentence(index, error))
            if gone_by(error):
                stock.lost.append(index)
            continue
        slices = _slices(handle)
        if slices is None:
            stock.gpus.append(gpu)
        elif slices:
            stock.gpus.extend(_describe_slice(gpu, number, handle, len(slices)) for number, handle in slices)
        else:
            stock.problems.append(
                f"GPU {index} has MIG enabled but no slices: create some (nvidia-smi mig -cgi), or disable MIG."
            )
    stock.gpus[:] = [_with_links(gpu, stock.gpus) for gpu in stock.gpus]
    return stock


def watch_errors(gpus: Iterable[Gpu]) -> Any:
    """Subscribe to errors of these GPUs; None if the driver cannot.

    Returns an event set, which ``take_errors`` empties.
    """
    events = _optional(pynvml.nvmlEventSetCreate)
    if events is None:
        return None
    watched = {gpu.gpu_index: gpu.handle if gpu.parent is None else gpu.parent for gpu in gpus}
    for handle in watched.values():
        _optional(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, events)
    return events


def take_errors(events: Any) -> dict[str, list[int]]:
    """Error numbers since the last call, by UUID of the GPU; does not wait."""
    found: dict[str, list[int]] = {}
    for _ in range(_MOST_ERRORS):
        event = None if events is None else _optional(pynvml.nvmlEventSetWait_v2, events, 0)
        if event is None:
            break
        uuid = _optional(pynvml.nvmlDeviceGetUUID, event.device)
        if uuid is not None and event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            found.setdefault(_text(uuid), []).append(int(event.eventData))
    return found


def forget_errors(events: Any) -> None:
    """Free the event set."""
    if events is not None:
        _optional(pynvml.nvmlEventSetFree, events)


def take_sample(gpu: Gpu) -> Sample:
    """One reading of a GPU.

    Raises:
        NVMLError: the GPU does not even report its memory.
    """
    used_bytes, total_bytes = _memory(gpu.handle)
    utilization = _optional(pynvml.nvmlDeviceGetUtilizationRates, gpu.handle)
    values = {
        "utilization": None if utilization is None else utilization.gpu,
        "temperature": _optional(pynvml.nvmlDeviceGetTemperature, gpu.handle, pynvml.NVML_TEMPERATURE_GPU),
        "power": _optional(pynvml.nvmlDeviceGetPowerUsage, gpu.handle),
    }
    limits = {"utilization": 100, "temperature": _MAX_TEMPERATURE_C, "power": _MAX_POWER_MW}
    odd = [name for name, value in values.items() if value is not None and not 0 <= value <= limits[name]]
    for name in odd:
        values[name] = None
    power_mw = values["power"]
    energy_mj = _optional(pynvml.nvmlDeviceGetTotalEnergyConsumption, gpu.handle)  # from Volta on
    return Sample(
        used_bytes=used_bytes,
        total_bytes=total_bytes,
        utilization_percent=values["utilization"],
        temperature_c=values["temperature"],
        power_w=None if power_mw is None else power_mw / 1000,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        memory_by_pid=_memory_by_pid(gpu.handle),
        dropped=len(odd),
        slowed=_slowed_by(gpu.handle),
        slices_changed=_slice_count(gpu.handle if gpu.parent is None else gpu.parent) != gpu.slices,
    )


def _slowed_by(handle: Any) -> str | None:
    # The old name of this call: drivers before R535 know no other, and newer ones still have it.
    reasons = _optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    return next((what for mask, what in _SLOWED_BY if reasons & mask), None)


def _slices(handle: Any) -> list[tuple[int, Any]] | None:
    """The MIG slices of a GPU with their numbers; None without MIG."""
    if not (_optional(pynvml.nvmlDeviceGetMigMode, handle) or (0, 0))[0]:
        return None
    most = _optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    handles = (
        (number, _optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
        for number in range(most)
    )
    return [(number, slice_handle) for number, slice_handle in handles if slice_handle is not None]


def _slice_count(handle: Any) -> int:
    slices = _slices(handle)
    return NOT_CUT if slices is None else len(slices)


def _describe_slice(gpu: Gpu, number: int, handle: Any, slices: int) -> Gpu:
    """A slice as a device of its own, with its GPU's place in the host and without NVLink."""
    name = _text(pynvml.nvmlDeviceGetName(handle))
    profile = _PROFILE.search(name)
    info = replace(
        gpu.info,
        id=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=SLICES_FROM * (gpu.info.index + 1) + number,
        name=name,
        memory_bytes=_memory_bytes(handle),
        mig_parent=gpu.info.id,
        mig_profile=profile[1] if profile else name[-32:],
        nodes=(*gpu.info.nodes, *_capability_nodes(gpu.info.index, handle)),
    )
    return Gpu(info, handle, gpu.handle, slices)


def _capability_nodes(gpu_index: int, handle: Any) -> list[str]:
    """The device files that let a process use this slice (nvidia-smi's manual, "MIG device nodes")."""
    instance = _optional(pynvml.nvmlDeviceGetGpuInstanceId, handle)
    compute = _optional(pynvml.nvmlDeviceGetComputeInstanceId, handle)
    wanted = {f"gpu{gpu_index}/gi{instance}/access", f"gpu{gpu_index}/gi{instance}/ci{compute}/access"}
    try:
        lines = _MIG_MINORS.read_text().splitlines()
    except OSError:
        return []
    minors = [line.split()[1] for line in lines if line.split()[:1] and line.split()[0] in wanted]
    return [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors]


def _describe(handle: Any, index: int, driver: str) -> DeviceInfo:
    minor = _optional(pynvml.nvmlDeviceGetMinorNumber, handle)
    nodes = (f"/dev/nvidia{index if minor is None else minor}", *_SHARED_NODES)
    return DeviceInfo(
        id=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        kind="gpu",
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=_memory_bytes(handle),
        numa_node=_numa_node(handle),
        nodes=tuple(node for node in nodes if Path(node).exists()),
        driver=driver,
    )


def _memory_bytes(handle: Any) -> int:
    """The GPU's memory; 0 for a lost GPU, which stays in the list so that people see it."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError as error:
        if gone_by(error):
            return 0
        raise


def _memory(handle: Any) -> tuple[int, int]:
    """Memory in use and in all, in bytes.

    What the driver keeps for itself is not in use: an idle GPU would seem to hold half a GiB.  Drivers before R510 do not
    tell it.

    Raises:
        NVMLError: the GPU does not report its memory.
    """
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if memory is None:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.used), int(memory.total)
    # Not its "used": that has the reserved memory in it on some drivers and not on others.
    allocated_bytes = int(memory.total) - int(memory.free) - int(memory.reserved)
    return (allocated_bytes if allocated_bytes >= 0 else int(memory.used)), int(memory.total)


def _numa_node(handle: Any) -> int | None:
    pci = _optional(pynvml.nvmlDeviceGetPciInfo, handle)
    if pci is not None:
        # NVML writes the domain with eight digits, the kernel with four.
        address = _text(pci.busId).lower()[-12:]
        try:
            node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
        except (OSError, ValueError):
            node = -1
        if node >= 0:
            return node
    return _optional(pynvml.nvmlDeviceGetNumaNodeId, handle)


def _with_links(gpu: Gpu, gpus: list[Gpu]) -> Gpu:
    """Add the NVLink neighbours of a GPU: with an NVSwitch all others; a slice has none."""
    if gpu.parent is not None:
        return gpu
    linked = tuple(
        other.info.id
        for other in gpus
        if other is not gpu
        and other.parent is None
        and _optional(
            pynvml.nvmlDeviceGetP2PStatus, gpu.handle, other.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        )
        == pynvml.NVML_P2P_STATUS_OK
    )
    return replace(gpu, info=replace(gpu.info, nvlink=linked))


def _memory_by_pid(handle: Any) -> dict[int, int]:
    found: dict[int, int] = {}
    for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in _optional(ask, handle) or ():
            # A process that computes and draws is in both lists with the same amount.
            found[process.pid] = max(found.get(process.pid, 0), process.usedGpuMemory or 0)
    return found


def _optional(call: Callable[..., Value], *arguments: Any) -> Value | None:
    """Call the driver; None if GPU or driver lack this answer.  Raises for a lost GPU."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED):
            raise
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
