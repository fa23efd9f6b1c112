"""What the whole host shows."""

import os
from pathlib import Path

import psutil

from orchestrator.devices.types import HostReading

psutil.cpu_percent(interval=None)  # the first call starts the measurement


def read_host(folder: Path = Path("/")) -> HostReading:
    """One reading of the host and of the disk that ``folder`` lies on; for one caller per process."""
    memory = psutil.virtual_memory()
    return HostReading(
        cpu_percent=psutil.cpu_percent(interval=None),
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
        disk_free_bytes=psutil.disk_usage(str(folder)).free,
        load=os.getloadavg()[0],
    )
